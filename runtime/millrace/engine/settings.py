"""What the engine reads from the configuration besides plain values."""

from __future__ import annotations

import importlib
from typing import Any

from millrace.config import StreamsConfig
from millrace.errors import ConfigError
from millrace.processor.api import TimestampExtractor
from millrace.processor.timestamp_extractors import EXTRACTORS_BY_NAME, fail_on_invalid_timestamp


def default_timestamp_extractor(config: StreamsConfig) -> TimestampExtractor:
    """Return the extractor of `default.timestamp.extractor`: a function, one of Kafka's names, or `module:attribute`.

    Raises:
        ConfigError: the value stands for no function.
    """
    value: Any = config.default_timestamp_extractor
    if value is None:
        return fail_on_invalid_timestamp
    if isinstance(value, str):
        name = value.removeprefix("org.apache.kafka.streams.processor.")
        if name in EXTRACTORS_BY_NAME:
            return EXTRACTORS_BY_NAME[name]
        module, colon, attribute = value.partition(":")
        try:
            if not colon:
                raise ImportError("it is not of the form module:attribute")  # noqa: TRY301
            value = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            known = ", ".join(EXTRACTORS_BY_NAME)
            raise ConfigError(f"default.timestamp.extractor: {name!r} is none of {known}, and: {error}") from error
    if not callable(value):
        raise ConfigError(f"default.timestamp.extractor: {value!r} is not callable")
    return value  # type: ignore[no-any-return]
