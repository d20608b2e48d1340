"""A member with the classic protocol: it joins, syncs, and leads the group if it is asked to."""
