"""The Ray Serve application: `edge_agent.cloud.application:build` in a Serve configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import LoggingConfig

from edge_agent.cloud.config import ApplicationConfig, load_cloud_config
from edge_agent.cloud.replica import Replica


def build(arguments: dict[str, Any]) -> Application:
    """Build the application of a configuration file; called by Ray Serve.

    Args:
        arguments: `config` is the path of the file on the machine where Ray Serve runs.

    Raises:
        ConfigError: The file has mistakes.
    """
    return application(load_cloud_config(Path(arguments["config"])))


def application(config: ApplicationConfig) -> Application:
    """Build the application of a configuration."""
    replicas = config.replicas
    deployment: Any = serve.deployment(name="replica")(Replica)
    bound: Application = deployment.options(
        autoscaling_config=AutoscalingConfig(
            min_replicas=replicas.min,
            max_replicas=replicas.max,
            target_ongoing_requests=replicas.target_ongoing_requests,
            look_back_period_s=replicas.look_back_s,
            upscale_delay_s=replicas.upscale_delay_s,
            downscale_delay_s=replicas.downscale_delay_s,
        ),
        max_ongoing_requests=replicas.max_ongoing_requests,
        max_queued_requests=replicas.max_queued_requests,
        # The first bundle is for the replica itself, then one per device, all on one node.
        ray_actor_options={"num_cpus": replicas.cpus},
        placement_group_bundles=[
            {"CPU": replicas.cpus},
            *(
                {"CPU": device.cpus, **({"GPU": device.gpus} if device.gpus else {})}
                for device in config.devices
            ),
        ],
        placement_group_strategy="STRICT_PACK",
        graceful_shutdown_timeout_s=config.drain_s,
        logging_config=LoggingConfig(enable_access_log=False, log_level="WARNING"),
    ).bind(config)
    return bound
