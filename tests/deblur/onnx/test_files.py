"""ONNX files of strangers: each is refused with one sentence, and no engine ever sees it."""

import json
from itertools import pairwise

import numpy as np
import pytest

from deblur.hub import CheckpointError
from deblur.onnx.files import LARGEST_FILE, GraphFacts, read_facts, read_graph
from deblur.onnx.network import OnnxNetwork

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

SIDE = 16
FACTS = GraphFacts("fp32", 20, SIDE, 4, 4, None, 100.0)
WEIGHT = numpy_helper.from_array(np.ones((3, 3, 1, 1), np.float32), "weight")


def model(*nodes, tensors=(WEIGHT,), inputs=("blurry",), side=SIDE, opset=20):
    """A graph of nodes, whose last one puts out `output`."""
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, side, side]) for name in inputs]
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, 3, side, side])
    graph = helper.make_graph(nodes, "graph", given, [output], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def conv(source="blurry", target="output"):
    return helper.make_node("Conv", [source, "weight"], [target])


def constant(name, value):
    return numpy_helper.from_array(np.array(value), name)


def said(path, content, facts=FACTS):
    path.write_bytes(content if isinstance(content, bytes) else content.SerializeToString())
    with pytest.raises(CheckpointError) as caught:
        read_graph(path, "predictor", facts)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.onnx"


def test_a_good_graph_is_read(path):
    path.write_bytes(model(conv()).SerializeToString())
    assert read_graph(path, "predictor", FACTS) == path.read_bytes()


def test_truncated_and_foreign_files(path):
    with pytest.raises(CheckpointError, match="does not exist"):
        read_graph(path, "predictor", FACTS)
    whole = model(conv()).SerializeToString()
    assert "damaged" in said(path, whole[: len(whole) // 2])
    assert "damaged" in said(path, b"")
    assert "damaged" in said(path, b"\x89PNG\r\n\x1a\n" + bytes(100))
    assert "damaged or no predictor" in said(path, model(conv("photo"), inputs=("photo",)))
    assert "takes no tiles of 16 pixels" in said(path, model(conv(), side=32))
    beyond = helper.make_node("Gather", ["list", "index"], ["none"])
    tensors = [WEIGHT, constant("list", [1, 2]), constant("index", [9])]
    assert "is not valid" in said(path, model(beyond, conv(), tensors=tensors))


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "weights.bin"])
def test_tensors_in_other_files_are_refused(path, location):
    (path.parent.parent / "secret.bin").write_bytes(bytes(36))
    (path.parent / "weights.bin").write_bytes(bytes(36))
    weight = TensorProto(name="weight", data_type=TensorProto.FLOAT, dims=[3, 3, 1, 1])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    assert "keeps the tensor weight in another file" in said(path, model(conv(), tensors=[weight]))
    inside = helper.make_node("Constant", [], ["weight"], value=weight)
    assert "keeps the tensor weight in another file" in said(path, model(inside, conv(), tensors=[]))


def test_a_file_larger_than_any_onnx_file_is_refused_unread(path):
    with open(path, "wb") as file:
        file.truncate(LARGEST_FILE + 1)  # sparse: it takes no space
    with pytest.raises(CheckpointError, match="is larger than an ONNX file can be"):
        read_graph(path, "predictor", FACTS)


def test_a_graph_that_breaks_the_standard_is_refused(path):
    twice = [conv(), conv()]  # two nodes with one result
    assert "is not valid" in said(path, model(*twice))
    assert "is not valid" in said(path, model(helper.make_node("Conv", ["blurry", "nothing"], ["output"])))


def test_tensors_that_claim_more_than_they_hold_are_refused(path):
    weight = TensorProto(name="weight", data_type=TensorProto.FLOAT, dims=[1 << 20, 1 << 20, 1, 1], raw_data=bytes(36))
    assert "fewer or more values of the tensor weight" in said(path, model(conv(), tensors=[weight]))


def growing(kind):
    scales, sizes = constant("scales", np.float32([1, 1, 4096, 4096])), constant("sizes", [1, 3, 1 << 16, 1 << 16])
    pads = constant("pads", [0, 0, 0, 0, 0, 0, 1 << 16, 1 << 16])
    if kind == "Resize":
        return [helper.make_node("Resize", ["blurry", "", "scales"], ["big"], mode="nearest")], [scales]
    if kind == "Expand":
        mean = helper.make_node("ReduceMean", ["blurry"], ["one"])
        return [mean, helper.make_node("Expand", ["one", "sizes"], ["big"])], [sizes]
    if kind == "Pad":
        return [helper.make_node("Pad", ["blurry", "pads"], ["big"])], [pads]
    names = ["blurry", *(f"twice{k}" for k in range(29)), "big"]
    return [helper.make_node("Concat", [one, one], [two], axis=1) for one, two in pairwise(names)], []


@pytest.mark.parametrize("kind", ["Resize", "Expand", "Pad", "Concat"])
@pytest.mark.parametrize("facts", [FACTS, GraphFacts("fp32", 20, None, 4, 4, None, 100.0)])
def test_values_out_of_proportion_are_refused(path, kind, facts):
    nodes, tensors = growing(kind)
    shrunk = helper.make_node("Conv", ["blurry", "weight"], ["output"])
    assert "out of all proportion" in said(path, model(*nodes, shrunk, tensors=[WEIGHT, *tensors]), facts)


def test_sizes_that_depend_on_the_image_s_values_are_refused(path):
    nodes = [
        helper.make_node("ReduceMax", ["blurry"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Unsqueeze", ["whole", "axis"], ["list"]),
        helper.make_node("Expand", ["most", "list"], ["big"]),
    ]
    found = said(path, model(*nodes, conv(), tensors=[WEIGHT, constant("axis", [0])]))
    assert "has a value, big, whose size cannot be told" in found


def test_operators_that_no_export_has_are_refused(path):
    shape = constant("shape", [1 << 20, 1 << 20])
    fill = helper.make_node("ConstantOfShape", ["shape"], ["big"])
    assert "has the operator ConstantOfShape" in said(path, model(fill, conv(), tensors=[WEIGHT, shape]))
    own = helper.make_node("Conv", ["blurry", "weight"], ["output"], domain="com.example")
    assert "has the operator com.example.Conv" in said(path, model(own))
    looped = helper.make_node("Relu", ["blurry"], ["other"], body=helper.make_graph([], "branch", [], []))
    assert "a graph or sparse tensors inside of the operator Relu" in said(path, model(looped, conv()))


VALUES = {"precision": "fp32", "opset": 20, "side": 16, "stride": 4, "multiple": 2, "receptive_field": None}
VALUES |= {"bytes_per_pixel": 9.5}


def test_a_network_checks_its_file_before_an_engine_gets_it(path):
    own = helper.make_node("Conv", ["blurry", "weight"], ["output"], domain="com.example")
    path.write_bytes(model(own).SerializeToString())
    path.with_name("graph.json").write_text(json.dumps(VALUES))
    path.with_name("config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"has the operator com\.example\.Conv"):
        OnnxNetwork(path.parent, "predictor", "cpu")


WRONG = [{"side": 15}, {"side": 1 << 20}, {"stride": 0}, {"multiple": 0}, {"multiple": 3}]
WRONG += [{"precision": "int4"}, {"bytes_per_pixel": -1}, {"more": 1}]


@pytest.mark.parametrize("change", WRONG)
def test_facts_that_do_not_fit_are_refused(tmp_path, change):
    (tmp_path / "graph.json").write_text(json.dumps(VALUES))
    assert read_facts(tmp_path).side == 16
    (tmp_path / "graph.json").write_text(json.dumps(VALUES | change))
    with pytest.raises(CheckpointError, match=r"graph\.json was not written by tools\.export_onnx: "):
        read_facts(tmp_path)
