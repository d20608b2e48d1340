"""Kafka Streams for Python: the public API in one place.

`__init__.pyi` lists the names. They are imported when they are first used, so that `import millrace` costs nothing (pytest
loads this package for its Kafka fixtures in every run) and a program that only defines a topology loads no Kafka client.

>>> from millrace import Serdes, StreamsBuilder, TopologyTestDriver
>>> text = Serdes.string()
>>> builder = StreamsBuilder()
>>> builder.stream("lines").map_values(str.upper).to("shouts")
>>> with TopologyTestDriver(builder.build(), {"default.key.serde": "string", "default.value.serde": "string"}) as driver:
...     driver.create_input_topic("lines", text, text).pipe_input("k", "hello")
...     driver.create_output_topic("shouts", text, text).read_value()
'HELLO'
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
