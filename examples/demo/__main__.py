"""``python examples/demo`` runs the demo; ``python examples/demo bank PREFIX`` is the service that it kills."""

import os
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

if sys.argv[1:2] == ["bank"]:
    import anyio

    from demo.bank import serve_until_killed

    anyio.run(serve_until_killed, os.environ["EVENTBUS_URL"], sys.argv[2])
else:
    from demo.command import main

    sys.exit(main(sys.argv[1:]))
