"""Settings for every test."""

from __future__ import annotations

import os

from hypothesis import settings

# How long an example takes is the machine's affair; speed is measured in bench/.
settings.register_profile("explore", deadline=None)
# The same examples in every run: a change is not refused for what another one broke.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
