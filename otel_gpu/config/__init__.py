"""The configuration: settings declared once, resolved with their origins, composed into frozen groups."""

from otel_gpu.config.groups import Config, LogFormat, LogLevel, Scope, SourceChoice
from otel_gpu.config.resolution import DEFAULT, VARIABLES, Loaded, Resolved, Value, load, nearest, resolve, similar
from otel_gpu.config.schema import BY_KEY, SETTINGS, keys
from otel_gpu.config.setting import Setting, Topic

__all__ = [
    "BY_KEY",
    "DEFAULT",
    "SETTINGS",
    "VARIABLES",
    "Config",
    "Loaded",
    "LogFormat",
    "LogLevel",
    "Resolved",
    "Scope",
    "Setting",
    "SourceChoice",
    "Topic",
    "Value",
    "keys",
    "load",
    "nearest",
    "resolve",
    "similar",
]
