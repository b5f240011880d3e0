"""Networks as ONNX graphs, for servers without Python."""

from itertools import count

import numpy as np

__all__ = ["OnnxGraph"]

# Of the oldest opset and format that have all operators used here.
OPSET, FORMAT = 13, 8


class OnnxGraph:
    """A graph of single precision, from rows "X" to named outputs."""

    def __init__(self, n_features):
        try:
            import onnx
        except ImportError as error:
            raise ImportError(
                "to_onnx needs the package onnx: pip install 'skvi[onnx]'."
            ) from error
        self.onnx, self.n_features = onnx, n_features
        self._names = (f"t{i}" for i in count())
        self._nodes, self._constants, self._outputs = [], [], []

    def apply(self, operator, *inputs, name=None, **attributes):
        """Add a node; inputs are names of results, or arrays."""
        name = next(self._names) if name is None else name
        known = [x if isinstance(x, str) else self._constant(x) for x in inputs]
        make = self.onnx.helper.make_node
        self._nodes.append(make(operator, known, [name], **attributes))
        return name

    def output(self, name, shape=(), kind=np.float32):
        """Declare a result an output: its rows have this shape."""
        code = self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        self._outputs.append(self._described(name, code, shape))

    def model(self):
        """The model, which onnx has checked."""
        helper = self.onnx.helper
        code = self.onnx.TensorProto.FLOAT
        rows = self._described("X", code, (self.n_features,))
        graph = helper.make_graph(
            self._nodes, "skvi", [rows], self._outputs, self._constants
        )
        opset = [helper.make_opsetid("", OPSET)]
        found = helper.make_model(graph, opset_imports=opset, ir_version=FORMAT)
        self.onnx.checker.check_model(found, full_check=True)
        return found

    def _constant(self, value):
        name = next(self._names)
        array = np.asarray(value)
        kind = np.float32 if array.dtype.kind == "f" else array.dtype
        tensor = self.onnx.numpy_helper.from_array(array.astype(kind), name)
        self._constants.append(tensor)
        return name

    def _described(self, name, code, shape):
        return self.onnx.helper.make_tensor_value_info(name, code, ["n", *shape])
