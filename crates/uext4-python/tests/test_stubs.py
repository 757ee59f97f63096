"""The type stubs of the core.

Fault model: a name of the module has no stub, or a stub no name; parameters differ.
"""

import ast
import inspect
import pathlib

import uext4
from uext4 import _uext4


def declared():
    text = (pathlib.Path(uext4.__file__).parent / "_uext4.pyi").read_text()
    return {node.name: node for node in ast.parse(text).body if hasattr(node, "name")}


def public(of):
    return {name for name in dir(of) if not name.startswith("_")}


def test_each_name_has_a_stub():
    stubs = declared()
    # A type for the stubs alone, and a constant.
    assert public(_uext4) == set(stubs) - {"Stat"} | {"VERSION"}
    for name in ("Volume", "File"):
        methods = {node.name: node for node in stubs[name].body if hasattr(node, "name")}
        assert public(getattr(_uext4, name)) == set(methods) - {"__new__"}, name
        for method, node in methods.items():
            of = getattr(getattr(_uext4, name), method)
            check(of if method != "__new__" else getattr(_uext4, name), node)
    for name in ("mkfs", "fsck", "read_device"):
        check(getattr(_uext4, name), stubs[name])


def check(function, node):
    """The parameters of a function are those of its stub."""
    if not callable(function):
        return
    names = [p for p in inspect.signature(function).parameters if p not in ("self", "cls")]
    arguments = node.args.args + node.args.kwonlyargs
    assert names == [a.arg for a in arguments if a.arg not in ("self", "cls")], node.name


def test_what_stat_gives_is_declared(volume):
    fields = [node.target.id for node in declared()["Stat"].body]
    assert list(volume.core.stat(b"/", True)) == fields


def test_the_package_is_typed_and_exports_what_it_says():
    assert (pathlib.Path(uext4.__file__).parent / "py.typed").exists()
    for name in uext4.__all__:
        assert getattr(uext4, name) is not None
    # Each public function of the Python layer says what it takes and gives.
    for part in (uext4.Volume, uext4.Path, uext4.File):
        for name, value in vars(part).items():
            if inspect.isfunction(value) and not name.startswith("_"):
                hints = value.__annotations__
                parameters = [p for p in inspect.signature(value).parameters if p != "self"]
                assert "return" in hints and all(p in hints for p in parameters), name
    assert uext4.__version__.count(".") == 2
