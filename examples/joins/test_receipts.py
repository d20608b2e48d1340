"""Which orders get a receipt, and what is on it."""

from pathlib import Path

import pytest
from receipts import Order, Payment, Receipt, topology

from millrace import Serdes, StreamsBuilder, TopologyTestDriver
from millrace.manifest import load, to_streams_config

HOUR_MS = 3_600_000


@pytest.fixture
def driver():
    """Run the topology with the manifest's settings; two customers and a country are known."""
    app = load(Path(__file__).with_name("streamsapp.yaml"))
    builder = StreamsBuilder()
    topology(builder, app.spec.app.config)
    text = Serdes.string()
    with TopologyTestDriver(builder.build(), to_streams_config(app)) as driver:
        driver.create_input_topic("customers", text, text).pipe_list([("c1", "Ada"), ("c2", "Bo")])
        driver.create_input_topic("countries", text, text).pipe_input("no", "Norway")
        yield driver


def order(driver, key, order, timestamp=0):
    """Send an order."""
    driver.create_input_topic("orders", Serdes.string(), Serdes.pydantic(Order)).pipe_input(key, order, timestamp)


def pay(driver, key, timestamp):
    """Send a payment."""
    payments = driver.create_input_topic("payments", Serdes.string(), Serdes.pydantic(Payment))
    payments.pipe_input(key, Payment(method="card"), timestamp)


def receipts(driver):
    """Return the receipts so far."""
    return driver.create_output_topic("receipts", Serdes.string(), Serdes.pydantic(Receipt)).read_values_to_list()


def test_paid_order_has_a_receipt(driver):
    """A receipt has the order's amount, the payment's method, and the names of customer and country."""
    order(driver, "o1", Order(customer="c1", country="no", cents=250))
    pay(driver, "o1", HOUR_MS)
    assert receipts(driver) == [Receipt(order="o1", customer="Ada", cents=250, method="card", country="Norway")]


def test_payment_may_come_first(driver):
    """The window reaches in both directions."""
    pay(driver, "o1", 0)
    order(driver, "o1", Order(customer="c2", country="no", cents=1), HOUR_MS)
    assert [receipt.customer for receipt in receipts(driver)] == ["Bo"]


def test_payment_that_is_too_late(driver):
    """An order and a payment that are more than an hour apart are not joined."""
    order(driver, "o1", Order(customer="c1", country="no", cents=250))
    pay(driver, "o1", HOUR_MS + 1)
    assert receipts(driver) == []


def test_unknown_customer_and_country(driver):
    """Without a customer there is no receipt (an inner join); an unknown country keeps its code (a left join)."""
    order(driver, "o1", Order(customer="nobody", country="no", cents=1))
    pay(driver, "o1", 0)
    order(driver, "o2", Order(customer="c1", country="xx", cents=1))
    pay(driver, "o2", 0)
    assert [(receipt.order, receipt.country) for receipt in receipts(driver)] == [("o2", "xx")]
