"""What stays behind when volumes come and go.

Fault model: descriptors, threads or memory stay after `close`, or after the last reference to what
was not closed. `benches/open_close.py` has the long form.
"""

import importlib.util
import pathlib

BENCHES = pathlib.Path(__file__).parent.parent / "benches"


def test_open_and_close_leave_nothing(image):
    spec = importlib.util.spec_from_file_location("open_close", BENCHES / "open_close.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.measure(str(image), cycles=300, warm_up=100).is_clean()
