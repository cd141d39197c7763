"""The settings of a launcher, as they follow `launcher.` on the command line.

They never change a result, so they are no part of any run's identity.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field, ValidationError

from adversariallm.core.config import FrozenConfig
from adversariallm.core.errors import ConfigError


class Launcher(FrozenConfig):
    """Where the runs are worked on."""

    kind: Literal["inline", "local", "slurm"] = Field(
        "inline", description="this process, local processes, or Slurm jobs"
    )
    workers: int = Field(1, ge=1, description="processes, or Slurm jobs, at once")
    max_restarts: int = Field(3, ge=0, description="restarts of a local worker that crashes")
    wait: bool = Field(False, description="slurm: stay and show progress until all is done")
    timeout_min: int = Field(240, ge=1, description="time limit of a Slurm job")
    partition: str | None = Field(None, description="Slurm partition")
    account: str | None = Field(None, description="Slurm account")
    qos: str | None = Field(None, description="Slurm quality of service")
    constraint: str | None = Field(None, description="Slurm node features")
    cpus_per_task: int = Field(1, ge=1, description="cores of a worker")
    gpus_per_node: int = Field(0, ge=0, description="GPUs of a worker")
    mem_gb: float | None = Field(None, gt=0, description="memory of a worker")
    setup: tuple[str, ...] = Field((), description="shell lines before a Slurm job starts")
    container: str | None = Field(None, description="image for srun's --container-image")
    signal_delay_s: int = Field(90, ge=1, description="warning before a Slurm job's time limit")
    array_limit: int | None = Field(None, ge=1, description="jobs per array; the site's if unset")
    profile: str | None = Field(None, description="YAML file with these settings")

    def resolved(self) -> Launcher:
        """Fill in the profile's values where nothing was typed.

        Raises:
            ConfigError: The profile is missing, no mapping, or has a wrong key or value.
        """
        if self.profile is None:
            return self
        path = Path(self.profile).expanduser()
        try:
            values = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError) as error:
            raise ConfigError(f"launcher.profile={self.profile}: {error}") from None
        if not isinstance(values, dict):
            raise ConfigError(
                f"launcher.profile={self.profile}: expected lines such as partition: gpu"
            )
        typed = {name: getattr(self, name) for name in self.model_fields_set}
        try:
            return Launcher.model_validate({**values, **typed})
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ConfigError(f"launcher.profile={self.profile}: {where}: {first['msg']}") from None
