"""A member in its own process, so that a test can suspend all of it with SIGSTOP; reports on stdout what happens to it."""

import sys
import time

from tests.kafka.support import Group

from millrace.errors import TaskMigratedError
from millrace.records import OffsetAndMetadata


def main(bootstrap_servers, application_id, topic):
    """Join, commit every 50 ms until that is refused, then rejoin and end."""
    group = Group(bootstrap_servers, topic, 4, **{"application.id": application_id, "session.timeout.ms": 5000})
    member = group.join("stopped")
    group.until(lambda: member.assignment)
    sys.stdout.write("owns\n")
    sys.stdout.flush()
    while True:
        try:
            member.commit_offsets({tp: OffsetAndMetadata(1) for tp in member.assignment})
        except TaskMigratedError as error:
            sys.stdout.write(f"migrated {error}\n")
            break
        time.sleep(0.05)
    sys.stdout.flush()
    group.until(lambda: member.assignment and not member.rebalancing)
    sys.stdout.write(f"rejoined {len(member.assignment)}\n")
    sys.stdout.flush()
    group.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
