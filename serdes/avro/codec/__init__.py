"""Avro's bytes to Python's objects and back: functions generated for a schema and a type.

- ``writer``, ``branches``, ``defaults``: objects to bytes, and the branch of a union that a value is written as
- ``fastavro_engine``: the same by fastavro, for plain data
- ``reader``, ``arms``: bytes to objects, and the Python type of a branch
- ``shapes``, ``conversions``, ``values``, ``varint``, ``source``: what generated code is made of
- ``guards``, ``errors``: limits, and errors that name the field
"""
