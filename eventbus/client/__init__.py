"""The bus, its decorators, explicit clients and the runner.

- ``bus``, ``bus_run``: the bus, and one run of it from opening to closing
- ``decorators``, ``declarations``, ``router``: decorators, and what they declare
- ``producer``, ``partitioner``, ``sending``, ``producing``: how a record gets its bytes and its partition
- ``consumer``, ``consuming``, ``rebalance``: a consumer for your own loop
- ``transaction``, ``requests``, ``replies``, ``interceptors``, ``admin``: one module each
- ``handling``: records to handlers, with retries, commits and time limits
- ``scheduling``, ``tables``: records for later and timetables; tables of the latest value per key
- ``health``, ``metrics``, ``running``, ``blocked_loop``: observation of a run
- ``configuration``, ``config``, ``keywords``, ``log_url``: where settings come from
- ``threads``, ``blocking``: calls from other threads, and programs without an event loop
"""
