"""Runs the released judgezoo 0.1.9 on chats given as JSON; never in the process of the tests.

Hub ids are mapped to one local folder, in float32. Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import transformers


def patch_loading(folder: str) -> None:
    """Make every from_pretrained call load the folder in float32."""
    for auto in (transformers.AutoModelForCausalLM, transformers.AutoTokenizer):
        original = auto.from_pretrained
        is_model = auto is transformers.AutoModelForCausalLM

        def load(
            _name: str, *args: Any, _original: Any = original, _model: bool = is_model, **kw: Any
        ) -> Any:
            kw.pop("device_map", None)
            kw.pop("trust_remote_code", None)
            kw.pop("dtype", None)
            return _original(folder, *args, **(kw | ({"dtype": torch.float32} if _model else {})))

        auto.from_pretrained = staticmethod(load)  # type: ignore[method-assign]
    import peft

    peft.PeftModel.from_pretrained = staticmethod(lambda base, *args, **kw: base)  # type: ignore[method-assign]


def main() -> None:
    """Judge the chats of the request, one by one and as a batch."""
    import judgezoo
    from judgezoo.base import Judge

    request = json.load(sys.stdin)
    if request.get("folder"):
        patch_loading(request["folder"])
    options = request.get("options", {})
    if request["judge"] == "harmbench":
        from judgezoo.harmbench import HarmBenchClassifier

        options = {"classifier": HarmBenchClassifier[options["classifier"]]}
    if request["judge"] == "md_judge":
        from judgezoo.md_judge import MDJudgeVersion

        options = {"version": MDJudgeVersion.V0_1}
    judge = Judge.from_name(request["judge"], **options)
    extra = [request["targets"]] if "targets" in request else []
    with torch.no_grad():
        batch = judge.judge(json.loads(json.dumps(request["chats"])), *extra)
        single = [
            judge.judge([json.loads(json.dumps(c))], *[[t[i]] for t in extra])
            for i, c in enumerate(request["chats"])
        ]
    sys.stdout.write(json.dumps({"file": judgezoo.__file__, "batch": batch, "single": single}))


main()
