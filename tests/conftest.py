"""Settings for every test."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes is the machine's affair; speed is measured in bench/.
settings.register_profile("tenure", deadline=None)
settings.load_profile("tenure")
