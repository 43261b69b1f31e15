"""Plays many experiments with every policy and seed, in a pool of processes if wanted."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from tempfile import TemporaryFile
from typing import IO

from replay.experiment import Experiment, OnStep, Played, PolicyChoice, PolicyFault, unseen
from replay.headway import watch
from replay.results import RunResult
from replay.witness import found_in, note_in

OnResults = Callable[[list[RunResult]], None]
OnFault = Callable[[str], None]


def _raise_it(fault: str) -> None:
    raise PolicyFault(fault)


def run_all(
    experiments: Iterable[Experiment],
    choices: Sequence[PolicyChoice],
    seeds: Sequence[int],
    jobs: int = 1,
    on_results: OnResults = lambda _: None,
    on_fault: OnFault = _raise_it,
    on_step: OnStep = unseen,
) -> list[RunResult]:
    """Plays every experiment with every policy and seed.

    Args:
        experiments: What to play.
        choices: The policies.
        seeds: The seeds.
        jobs: Number of processes.
        on_results: Called with the results of each (experiment, seed) as it is done.
        on_fault: Called for each policy that did not play to the end. The others go on, unless it
            raises.
        on_step: As in `OnStep`; not called by several processes.

    Returns:
        The results in the order of experiments, seeds and policies, whichever order they were
        computed in.

    Raises:
        PolicyFault: As in `Experiment.simulate`, unless `on_fault` is given.
    """
    tasks = [(experiment, seed) for experiment in experiments for seed in seeds]
    done: list[list[RunResult]] = [[] for _ in tasks]
    for index, (results, faults) in _results(tasks, choices, jobs, on_step):
        done[index] = results
        for fault in faults:
            on_fault(fault)
        on_results(results)
    return [result for results in done for result in results]


def _results(
    tasks: Sequence[tuple[Experiment, int]],
    choices: Sequence[PolicyChoice],
    jobs: int,
    on_step: OnStep,
) -> Iterator[tuple[int, Played]]:
    if jobs <= 1 or len(tasks) <= 1:
        for index, (experiment, seed) in enumerate(tasks):
            yield index, experiment.play(choices, seed, on_step)
        return
    spawn, size = get_context("spawn"), min(jobs, len(tasks))
    with (
        TemporaryFile() as notes,  # it has no name, so nothing is left of it after a kill
        ProcessPoolExecutor(size, spawn, _begin, (_path_of(notes),)) as pool,
    ):
        try:
            with _held_back():  # this starts the processes
                futures = {
                    pool.submit(experiment.play, choices, seed): index
                    for index, (experiment, seed) in enumerate(tasks)
                }
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool:
            found = (
                "a simulation process died, e.g. because memory ran out (try fewer --jobs) or "
                "native code crashed"
            )
            if doing := found_in(notes):
                found += f"; meanwhile {', and '.join(doing)}"
            raise ChildProcessError(found) from None
        finally:
            # Only the pool's own thread may cancel: it fails the futures if Ctrl-C ends a process.
            pool.shutdown(cancel_futures=True)


@contextmanager
def _held_back() -> Iterator[None]:
    """Holds back Ctrl-C, also in the processes that are started meanwhile, until they begin."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _path_of(file: IO[bytes]) -> str:
    """Where other processes can open a file that this one has open."""
    return f"/proc/{os.getpid()}/fd/{file.fileno()}"


def _begin(notes: str) -> None:
    """Makes a pool process exit at once on Ctrl-C, or when its parent dies, even during a run.

    Otherwise it would finish its task and then wait for ever for the next one. It also ends a
    policy that makes no headway. What a policy prints goes to stderr: the parent's stdout may be
    for the results. What is wrong with a source is not said here, once more for each process.
    """
    sys.stdout = sys.stderr
    warnings.filterwarnings("ignore", module=r"replay\.")
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # see `_held_back`
    threading.Thread(target=_follow, daemon=True).start()
    note_in(notes)
    watch()


def _follow() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
