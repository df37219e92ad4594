"""``eventbus run``: one service in this process, or several below a supervisor."""
