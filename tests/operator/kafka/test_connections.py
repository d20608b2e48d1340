"""Which applications share a connection, and when it is opened and closed."""

import threading
from functools import cache

import pytest
from tests.operator.kafka.support import streams_app

from millrace.errors import AuthenticationError, BrokerUnreachableError
from millrace_operator.kafka.client_config import Credentials, client_config
from millrace_operator.kafka.connections import IDLE_S, LONGEST_RETRY_S, MOST_OPEN, RETRY_AFTER_S, Connections

SCRAM = {"auth": {"type": "scram-sha-512", "secretRef": {"name": "user"}}}


class Opened:
    """A fake connection that knows whether it is open."""

    def __init__(self):
        self.open = True

    def close(self):
        assert self.open, "closed twice"
        self.open = False


class Brokers:
    """Opens connections or fails."""

    def __init__(self):
        self.opened = []
        self.attempts = 0
        self.down = False
        self.refused = set()

    def __call__(self, config):
        self.attempts += 1
        if self.down:
            raise BrokerUnreachableError("No broker answered")
        if str(config.client_settings.get("sasl.password")) in self.refused:
            raise AuthenticationError("Wrong password")
        self.opened.append(Opened())
        return self.opened[-1]


@pytest.fixture
def brokers():
    """Give brokers that count their connections."""
    return Brokers()


@pytest.fixture
def now():
    """Give a clock that only the test advances."""
    return [100.0]


@pytest.fixture
def connections(brokers, now):
    """Give the object under test."""
    return Connections(brokers, lambda: now[0])


def config(application_id="app", servers="a:1", password=None):
    """Return an application's settings."""
    app = streams_app(servers, application_id, kafka=SCRAM if password else {})
    secret = {"user": {"username": b"me", "password": password}} if password else {}
    return client_config(app, Credentials.of(app.spec, secret))


def use(connections, uid, settings):
    """Lease a connection and give it back."""
    with connections.lease(uid, settings) as connection:
        return connection


def test_applications_of_one_cluster_share_a_connection(connections):
    """Applications with the same brokers and credentials share a connection, which closes with the last of them."""
    first = use(connections, "u-1", config("one"))
    assert use(connections, "u-2", config("two")) is first
    connections.forget("u-1")
    assert first.open
    connections.forget("u-2")
    assert not first.open
    assert len(connections) == 0


def test_new_credentials_make_a_new_connection(connections):
    """When the password or addresses change, the old connection is closed, and the application keeps one."""
    connection = use(connections, "u", config(password=b"old"))
    for changed in (config(password=b"new"), config(password=b"new", servers="b:1"), config()):
        another = use(connections, "u", changed)
        assert another is not connection
        assert not connection.open
        assert len(connections) == 1
        connection = another


def test_a_connection_in_use_is_closed_when_it_is_given_back(connections):
    """Neither forgetting the application nor dropping nor closing closes a connection that another thread is using."""
    for end in (lambda _: connections.forget("u"), connections.drop, lambda _: connections.close()):
        with connections.lease("u", config()) as connection:
            end(connection)
            assert connection.open
            assert len(connections) == 0
        assert not connection.open


def test_a_dropped_connection_is_replaced(connections, brokers):
    """A connection that no longer works is not given out again."""
    connection = use(connections, "u", config())
    connections.drop(connection)
    connections.drop(connection)
    assert use(connections, "u", config()) is not connection
    assert [item.open for item in brokers.opened] == [False, True]


def test_brokers_that_are_down_are_not_tried_again_at_once(connections, brokers, now):
    """For a few seconds all applications of the cluster get the same error; patient callers and other logins retry."""
    brokers.down = True
    for uid in ("u-1", "u-2", "u-3"):
        with pytest.raises(BrokerUnreachableError):
            use(connections, uid, config())
    assert brokers.attempts == 1
    with pytest.raises(BrokerUnreachableError), connections.lease("u-1", config(), patient=True):
        pass
    assert brokers.attempts == 2
    brokers.down = False
    assert use(connections, "u-4", config(password=b"pw")).open
    with pytest.raises(BrokerUnreachableError):
        use(connections, "u-1", config())
    now[0] += RETRY_AFTER_S
    assert use(connections, "u-1", config()).open


def test_threads_that_come_together_open_one_connection(connections, brokers):
    """While one thread connects, the others wait and then use its connection."""
    barrier, seen = threading.Barrier(8), []

    def work(number):
        barrier.wait()
        seen.append(use(connections, f"u-{number % 3}", config()))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(set(map(id, seen))), brokers.attempts) == (1, 1)


def try_out(connections, uid, settings):
    """Lease a connection, and return the error if there is one."""
    try:
        use(connections, uid, settings)
    except (AuthenticationError, BrokerUnreachableError) as error:
        return error
    return None


@cache
def own(number, servers="a:1"):
    """Return the settings of an application with credentials of its own, which takes longer than to lease a connection."""
    return config(f"app-{number}", servers, b"%d" % number)


def test_brokers_that_are_away_are_tried_by_a_few_of_many_credentials(connections, brokers, now):
    """A thousand applications with their own credentials cost few attempts, less and less often; each gets an error."""
    brokers.down = True
    for _ in range(20):
        errors = [try_out(connections, f"u-{number}", own(number)) for number in range(1000)]
        assert all(isinstance(error, BrokerUnreachableError) for error in errors)
        now[0] += RETRY_AFTER_S
    assert brokers.attempts <= 12
    assert "a:1" in str(errors[999])
    brokers.down = False
    now[0] += LONGEST_RETRY_S
    assert all(use(connections, f"u-{number}", own(number)).open for number in range(1000))


def test_brokers_elsewhere_are_not_away_with_them(connections, brokers):
    """Clusters are distinguished by their addresses."""
    brokers.down = True
    for number in range(10):
        try_out(connections, f"u-{number}", own(number))
    brokers.down = False
    assert use(connections, "elsewhere", own(11, "b:1")).open
    assert isinstance(try_out(connections, "here", own(12)), BrokerUnreachableError)


def test_wrong_passwords_do_not_make_brokers_count_as_down(connections, brokers):
    """However many passwords are refused, brokers that refuse them are up."""
    brokers.refused = {str(number) for number in range(20)}
    for number in range(20):
        assert isinstance(try_out(connections, f"u-{number}", own(number)), AuthenticationError)
    assert use(connections, "good", own(20)).open


def test_one_unreachable_login_does_not_make_brokers_count_as_down(connections, brokers, now):
    """However often one login fails, it takes several to conclude that the brokers are down."""
    for _ in range(5):
        brokers.down = True
        assert isinstance(try_out(connections, "bad", own(1)), BrokerUnreachableError)
        now[0] += LONGEST_RETRY_S
    brokers.down = False
    assert use(connections, "good", own(2)).open


def test_only_connections_used_last_stay_open(connections, brokers):
    """Connections cost threads: of a thousand logins, most are connected only while in use."""
    for number in range(1000):
        use(connections, f"u-{number}", own(number))
        assert len(connections) <= MOST_OPEN
    assert [item.open for item in brokers.opened] == [False] * (1000 - MOST_OPEN) + [True] * MOST_OPEN
    latest = brokers.opened[-MOST_OPEN]
    assert use(connections, f"u-{1000 - MOST_OPEN}", own(1000 - MOST_OPEN)) is latest
    use(connections, "u-0", own(0))
    assert latest.open


def test_connection_that_is_used_is_not_closed_for_others(connections):
    """This holds even if more connections exist than may stay open."""
    with connections.lease("u", config()) as connection:
        for number in range(MOST_OPEN + 5):
            use(connections, f"u-{number}", own(number))
        assert connection.open
    assert connection.open
    assert len(connections) == MOST_OPEN


def test_connection_without_use_is_closed(connections, now):
    """An application may not be observed again for a long time."""
    first = use(connections, "u-1", own(1))
    now[0] += IDLE_S
    second = use(connections, "u-2", own(2))
    assert (first.open, second.open) == (False, True)
