from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from scheduler.core.signature import Signature, TensorSpec
from scheduler.wire import encode
from tests.workers import onnx_models
from tests.workers.onnx_models import save, tensor
from workers import repository
from workers.model import CacheRules, NearRules, Tolerance
from workers.model_files import weight_bytes
from workers.model_yaml import ModelFile, parse_model_file
from workers.repository import RepositoryError, load_repository

ONE_VARIANT = "variants: {fp32: {file: model.onnx}}\n"
NO_SUCH_DAY = "day is out of range for month"
if sys.version_info >= (3, 14):
    NO_SUCH_DAY = "day 30 must be in range 1..29 for month 2 in year 2024"


def reason_of(root, name: str) -> str:
    """The one problem of the one model that is left out."""
    repository = load_repository(root)
    assert name not in repository.models
    (problem,) = repository.problems
    assert problem.model == name
    return problem.reason


def test_an_empty_repository_has_neither_models_nor_problems(root):
    repository = load_repository(root)

    assert repository.models == {}
    assert repository.problems == ()


def test_an_absent_repository_is_an_error_that_names_it(tmp_path):
    with pytest.raises(RepositoryError, match=r"nowhere: No such file"):
        load_repository(tmp_path / "nowhere")


def test_a_bare_triton_layout_serves_the_highest_version(root):
    for version in ("2", "10", "9"):
        save(onnx_models.relu(), root / "relu" / version / "model.onnx")
    (root / "relu" / "config.pbtxt").write_text("max_batch_size: 8")

    (variant,) = load_repository(root).models["relu"].variants

    assert variant.name == "10"
    assert variant.path == root / "relu" / "10" / "model.onnx"


def test_a_model_yaml_without_variants_describes_the_highest_version(root):
    for version in ("1", "2"):
        save(onnx_models.sequence(), root / "ids" / version / "model.onnx")
    (root / "ids" / "model.yaml").write_text("profile_shapes: {ids: [16]}")

    model = load_repository(root).models["ids"]

    assert [variant.name for variant in model.variants] == ["2"]
    assert model.variants[0].path == root / "ids" / "2" / "model.onnx"
    assert model.profile_shapes == {"ids": (16,)}


def test_a_model_yaml_says_what_the_file_cannot(root, add):
    add(
        "ids",
        onnx_models.sequence(),
        """
        description: sums up
        max_batch: 6
        runtimes: [openvino]
        tolerance: {rtol: 0.5, atol: 0.25}
        profile_shapes: {ids: [17]}
        variants:
          precise: {file: model.onnx, accuracy: 0.9}
          rough: {file: model.onnx, precision: int8}
        """,
    )

    model = load_repository(root).models["ids"]

    assert (model.description, model.max_batch, model.runtimes) == ("sums up", 6, ("openvino",))
    assert model.tolerance == Tolerance(rtol=0.5, atol=0.25)
    assert model.profile_shapes == {"ids": (17,)}
    assert [(v.name, v.precision, v.accuracy, v.rank) for v in model.variants] == [
        ("precise", "fp32", 0.9, 0),
        ("rough", "int8", None, 1),
    ]


def test_a_dynamic_leading_dimension_is_the_batch(add, load):
    add("two", onnx_models.two_by_two())

    model = load("two")

    assert model.signature == Signature(
        inputs=(TensorSpec("a", "float32", (3,)), TensorSpec("b", "int32", (3,))),
        outputs=(TensorSpec("sum", "float32", (3,)), TensorSpec("total", "float32", ())),
        batched=True,
    )
    assert model.max_batch == 32
    assert not model.variants[0].fixed_batch


def test_a_leading_dimension_of_one_is_a_fixed_batch(add, load):
    add("relu", onnx_models.relu(batch=1))

    model = load("relu")

    assert model.signature.batched
    assert model.signature.inputs[0].shape == (3,)
    assert model.variants[0].fixed_batch


@pytest.mark.parametrize(
    ("made", "shape"),
    [(onnx_models.scalar(), ()), (onnx_models.relu(batch=5), (5, 3))],
    ids=["zero-dimensional", "fixed at five"],
)
def test_without_a_batch_dimension_the_shapes_stay_whole(add, load, made, shape):
    add("single", made)

    model = load("single")

    assert not model.signature.batched
    assert model.signature.inputs[0].shape == shape
    assert model.max_batch == 1


def test_a_dimension_that_depends_on_the_data_is_no_batch(add, load):
    add("found", onnx_models.found_objects())

    assert not load("found").signature.batched


def test_a_digest_follows_the_bytes_of_the_model_and_of_its_external_weights(root, add, load):
    file = add("relu", onnx_models.relu())
    first = load("relu")
    (file.parent / "model.onnx.data").write_bytes(b"weights")
    second = load("relu")
    save(onnx_models.relu(width=4), file)
    third = load("relu")

    assert len({model.variants[0].digest for model in (first, second, third)}) == 3
    assert len({model.digest for model in (first, second, third)}) == 3
    assert load("relu") == third
    assert len(third.variants[0].digest) == 32


def test_a_file_with_brackets_in_its_name_has_a_digest_of_its_own(root, add, load):
    file = add("relu", onnx_models.relu(), "variants: {fp32: {file: 'relu[3].onnx'}}\n")
    named = file.rename(file.with_name("relu[3].onnx"))
    first = load("relu")
    save(onnx_models.relu(width=4), named)

    assert weight_bytes(named) == named.stat().st_size
    assert load("relu").variants[0].digest != first.variants[0].digest


def test_a_folder_that_may_not_be_looked_at_leaves_the_others(root, add, monkeypatch):
    add("good", onnx_models.relu())
    (root / "barred").mkdir()
    is_dir = Path.is_dir

    def look(path):
        if path.name == "barred":
            raise PermissionError(13, "Permission denied", str(path))
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", look)

    assert "Permission denied" in reason_of(root, "barred")
    assert list(load_repository(root).models) == ["good"]


def test_a_bad_model_leaves_the_others_alone(root, add):
    add("good", onnx_models.relu())
    (root / "bad").mkdir()

    repository = load_repository(root)

    assert list(repository.models) == ["good"]
    assert [problem.model for problem in repository.problems] == ["bad"]
    assert "1/model.onnx" in repository.problems[0].reason


def test_a_bad_variant_leaves_the_others_of_its_model_alone(root, add):
    add("relu", onnx_models.relu(), "variants: {a: {file: absent.onnx}, b: {file: model.onnx}}")

    repository = load_repository(root)

    assert [variant.name for variant in repository.models["relu"].variants] == ["b"]
    assert repository.problems[0].reason == "variant 'a': file 'absent.onnx' is absent"


def test_variants_must_share_a_signature(root, add):
    add("relu", onnx_models.relu(), "variants: {a: {file: model.onnx}, b: {file: wide.onnx}}")
    save(onnx_models.relu(width=4), root / "relu" / "wide.onnx")

    repository = load_repository(root)

    assert [variant.name for variant in repository.models["relu"].variants] == ["a"]
    reason = repository.problems[0].reason
    assert reason.startswith("variant 'b': its inputs are x float32[4], ")
    assert "x float32[3]" in reason


def test_variants_may_differ_in_how_they_batch(root, add, load):
    add("relu", onnx_models.relu(), "variants: {a: {file: model.onnx}, b: {file: one.onnx}}")
    save(onnx_models.relu(batch=1), root / "relu" / "one.onnx")

    assert [variant.fixed_batch for variant in load("relu").variants] == [False, True]


def test_a_truncated_file_is_told(root, add):
    file = add("dense", onnx_models.dense())
    os.truncate(file, 1000)

    reason = reason_of(root, "dense")
    assert reason.startswith("variant '1': file 'model.onnx' is cut short")
    assert "it holds 1,000 bytes of at least 65," in reason


def test_an_empty_file_is_told(root, add):
    os.truncate(add("relu", onnx_models.relu()), 0)

    assert reason_of(root, "relu") == "variant '1': file 'model.onnx' is empty"


def test_a_file_without_inputs_is_told(root, add):
    node = helper.make_node("Identity", ["c"], ["y"])
    ones = onnx_models.constant("c", np.ones((1, 3), np.float32))
    add("ones", onnx_models.model([node], [], [tensor("y", "float32", [1, 3])], [ones]))

    said = "variant '1': file '1/model.onnx' has no inputs; a request needs at least one"
    assert reason_of(root, "ones") == said


def test_a_git_lfs_pointer_is_told(root, add):
    add("relu", onnx_models.relu()).write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4\n"
    )

    assert "Git LFS pointer; run `git lfs pull`" in reason_of(root, "relu")


@pytest.mark.parametrize("file", ["../other/model.onnx", "/etc/model.onnx", "a/../../m.onnx"])
def test_a_file_outside_the_model_is_refused(root, add, file):
    add("other", onnx_models.relu())
    add("relu", onnx_models.relu(), f"variants: {{a: {{file: {file}}}}}")

    repository = load_repository(root)

    assert list(repository.models) == ["other"]
    assert "lies outside the model's folder" in repository.problems[0].reason


@pytest.mark.parametrize(
    ("yaml", "said"),
    [
        ("variantz: {}", "unknown key 'variantz' (did you mean 'variants'?)"),
        (ONE_VARIANT + "max_bach: 4", "unknown key 'max_bach' (did you mean 'max_batch'?)"),
        (
            "variants: {a: {file: model.onnx, acuracy: 1.0}}",
            "unknown key 'variants.a.acuracy' (did you mean 'accuracy'?)",
        ),
        (
            ONE_VARIANT + "tolerance: {rtol: 0.1, atoll: 0.1}",
            "unknown key 'tolerance.atoll' (did you mean 'atol'?)",
        ),
        (ONE_VARIANT + "frobnicate: 4", "known are description, variants"),
        ("variants: {a: {file: model.onnx}, a: {file: b.onnx}}", "key 'a' appears twice"),
        (
            "variants: {1: {file: model.onnx}}",
            "key 'variants.1' must be a string: put it in quotes",
        ),
        ("variants: {a: {file: model.onnx, precision: fp33}}", "'fp32', 'fp16'"),
        ("variants: {a: {file: model.onnx, accuracy: 90}}", "less than or equal to 1"),
        ("variants: {a: {}}", "key 'variants.a.file' is missing"),
        ("variants: {}", "at least 1 item"),
        ("variants: {a b: {file: model.onnx}}", "match pattern"),
        ("variants: {a: {file: model.pt}}", "must end in .onnx or .xml"),
        (
            "description: 'no variants'",
            "model.yaml: key 'variants' is missing, and there is no version folder with a "
            "model.onnx, e.g. 1/model.onnx; move model.onnx to 1/model.onnx",
        ),
        ("", "must be a mapping"),
        (
            "variants: {\n  a: [",
            "not valid YAML: line 2: expected the node content, but found '<stre",
        ),
        ("? [a]\n: b", "not valid YAML"),
        ("description: 2024-02-30", f"not valid YAML: {NO_SUCH_DAY}"),
        ("description: !!bool x", "not valid YAML"),
        ("description: !!int ''", "not valid YAML"),
        ("description: !!timestamp x", "not valid YAML"),
        ("description: " + "[" * 5000, "not valid YAML"),
        (ONE_VARIANT + "max_batch: 0", "greater than or equal to 1"),
        (ONE_VARIANT + "max_batch: '4'", "valid integer"),
        (ONE_VARIANT + f"max_batch: {2**64}", "less than 2147483648"),
        (ONE_VARIANT + "runtimes: [openvin]", "no runtime is called 'openvin' (did you mean"),
        (ONE_VARIANT + "profile_shapes: {y: [3]}", "no input 'y'"),
        (ONE_VARIANT + "profile_shapes: {x: [4]}", "does not fit 'x'"),
    ],
)
def test_a_wrong_model_yaml_is_told_with_what_would_be_right(root, add, yaml, said):
    add("relu", onnx_models.relu(), yaml)

    assert said in reason_of(root, "relu")


def test_a_model_yaml_that_is_no_text_is_told(root, add):
    add("relu", onnx_models.relu(), "")
    (root / "relu" / "model.yaml").write_bytes(b"\xff\xfe\x00")

    assert reason_of(root, "relu").startswith("model.yaml: ")


def test_a_folder_that_is_no_model_name_is_told(root):
    save(onnx_models.relu(), root / "my model" / "1" / "model.onnx")

    assert "is no model name" in reason_of(root, "my model")


def test_a_name_of_another_encoding_is_told_in_a_text_that_can_be_sent(root):
    os.mkdir(os.fsencode(root) + b"/mod\xe8le")

    (problem,) = load_repository(root).problems
    assert problem.model == r"mod\udce8le"
    assert "is no model name" in problem.reason
    encode({"t": "catalog", "problems": [[problem.model, problem.reason]]})


def test_links_to_nowhere_are_told(root, add):
    add("relu", onnx_models.relu())
    (root / "relu" / "model.yaml").symlink_to("gone.yaml")
    (root / "away").symlink_to("unmounted")

    repository = load_repository(root)
    assert repository.models == {}
    told = {problem.model: problem.reason for problem in repository.problems}
    assert told["away"] == "it is a link to unmounted, which is not there"
    assert told["relu"] == "file 'model.yaml' is a link to gone.yaml, which is not there"


def test_of_a_version_that_is_a_link_to_nowhere_the_link_is_told(root):
    (root / "relu/1").mkdir(parents=True)
    (root / "relu/1/model.onnx").symlink_to("/unmounted/relu.onnx")

    reason = "file '1/model.onnx' is a link to /unmounted/relu.onnx, which is not there"
    assert reason_of(root, "relu") == reason

    save(onnx_models.relu(), root / "relu" / "0" / "model.onnx")
    assert load_repository(root).models["relu"].variants[0].name == "0"


@pytest.mark.parametrize("file", ["model.yaml", "1/model.onnx"])
def test_what_is_no_file_is_told_and_never_read(root, add, file):
    add("relu", onnx_models.relu())
    place = root / "odd" / file
    place.parent.mkdir(parents=True)
    os.mkfifo(place)  # nobody ever writes to it

    assert list(load_repository(root).models) == ["relu"]
    assert reason_of(root, "odd").endswith(f"file '{file}' is a pipe or a device, not a file")
    place.unlink()
    place.mkdir()
    assert reason_of(root, "odd").endswith(f"file '{file}' is a folder")


def test_a_loose_model_file_is_told_where_it_belongs(root):
    save(onnx_models.relu(), root / "relu.onnx")
    (root / "README.md").write_text("models")
    (root / ".git").mkdir()

    assert (
        reason_of(root, "relu")
        == "relu.onnx is not in a model folder; move it to relu/1/model.onnx"
    )


@pytest.mark.parametrize("version", ["٣", "9" * 129])
def test_a_folder_that_cannot_name_a_version_is_none(root, version):
    save(onnx_models.relu(), root / "relu" / version / "model.onnx")
    assert reason_of(root, "relu").startswith("has neither a model.yaml nor a version folder")
    save(onnx_models.relu(), root / "relu" / "2" / "model.onnx")
    assert list(load_repository(root).models) == ["relu"]


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("relu.onnx", "; move relu.onnx to 1/model.onnx"),
        ("3/relu.onnx", "; move 3/relu.onnx to 3/model.onnx"),
        ("relu.xml", "; move relu.xml to 1/model.xml and its .bin beside it, as model.bin"),
        ("notes.txt", ", e.g. 1/model.onnx"),
    ],
)
def test_a_file_of_another_name_is_told_where_it_belongs(root, file, told):
    (root / "relu" / file).parent.mkdir(parents=True)
    (root / "relu" / file).write_text("")
    assert reason_of(root, "relu").endswith(told)


def test_an_openvino_file_needs_its_weights(root, add):
    openvino = pytest.importorskip("openvino")
    file = add("dense", onnx_models.dense())
    openvino.save_model(openvino.Core().read_model(file), root / "dense" / "2" / "model.xml")

    model = load_repository(root).models["dense"]
    assert (model.variants[0].name, model.variants[0].path.suffix) == ("2", ".xml")
    assert model.signature.inputs == (TensorSpec("x", "float32", (128,)),)

    weights = root / "dense" / "2" / "model.bin"
    weights.write_bytes(np.zeros(weights.stat().st_size, np.uint8).tobytes())
    assert load_repository(root).models["dense"].digest != model.digest

    weights.unlink()
    assert reason_of(root, "dense") == "variant '2': file 'model.bin' is absent"


@pytest.mark.parametrize(
    "made",
    [
        onnx_models.two_by_two(),
        onnx_models.relu(batch=1),
        onnx_models.scalar(),
        onnx_models.found_objects(),
    ],
    ids=["dynamic", "fixed", "none", "data-dependent"],
)
def test_either_library_reads_the_same_signature(add, load, monkeypatch, made):
    for library in ("openvino", "onnxruntime"):
        pytest.importorskip(library)
    add("model", made)
    with_both = load("model")

    monkeypatch.setitem(sys.modules, "openvino", None)

    assert load("model") == with_both


def test_without_any_library_each_missing_one_is_told(root, add, monkeypatch):
    add("relu", onnx_models.relu())
    for library in ("openvino", "onnxruntime"):
        monkeypatch.setitem(sys.modules, library, None)

    reason = reason_of(root, "relu")

    assert "pip install openvino" in reason
    assert "pip install onnxruntime" in reason


@pytest.mark.parametrize(
    ("said", "rules"),
    [
        ("", CacheRules()),
        ("cache: true", CacheRules()),
        ("cache: false", None),
        ("cache: {ttl_s: 5, max_kb: 64}", CacheRules(5.0, 64)),
        ("cache: {near: {distance: 2}}", CacheRules(near=NearRules(2.0))),
    ],
)
def test_the_owner_says_how_answers_may_be_kept(root, add, said, rules):
    add("relu", onnx_models.relu(), ONE_VARIANT + said)
    assert load_repository(root).models["relu"].cache == rules


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("cache: {ttl: 5}", "unknown key 'cache.ttl' (did you mean 'ttl_s'?)"),
        ("cache: {near: {distance: 0}}", "greater than 0"),
        ("cache: {near: {distance: .inf}}", "finite number"),
        ("cache: {ttl_s: .inf}", "less than or equal to 1000000000"),
        ("cache: {near: {distance: 1}}", "needs a model with exactly one input"),
    ],
)
def test_a_mistake_in_it_is_named(root, add, said, told):
    add("pair", onnx_models.two_by_two(), ONE_VARIANT + said)
    assert told in reason_of(root, "pair")


def test_what_nobody_expected_costs_no_other_model(root, add, monkeypatch):
    def fails_for_one(text: str) -> ModelFile:
        if "odd" in text:
            raise RecursionError("too deep\nfor this")
        return parse_model_file(text)

    monkeypatch.setattr(repository, "parse_model_file", fails_for_one)
    add("odd", onnx_models.relu(), f"{ONE_VARIANT}description: odd")
    add("fine", onnx_models.relu(), ONE_VARIANT)
    found = load_repository(root)
    assert list(found.models) == ["fine"]
    (problem,) = found.problems
    assert problem.model == "odd"
    assert problem.reason == "reading it failed: RecursionError: too deep for this"
