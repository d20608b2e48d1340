"""How offers follow products and brands."""

from pathlib import Path

import pytest
from catalogue import Offer, Product, topology

from millrace import Serdes, StreamsBuilder, TopologyTestDriver
from millrace.manifest import load, to_streams_config

TEXT = Serdes.string()


@pytest.fixture
def driver():
    """Run the topology with the manifest's settings; there are two brands, and two products of the first."""
    builder = StreamsBuilder()
    topology(builder)
    app = load(Path(__file__).with_name("streamsapp.yaml"))
    with TopologyTestDriver(builder.build(), to_streams_config(app)) as driver:
        brands(driver).pipe_list([("b1", "Acme"), ("b2", "Zenith")])
        products(driver).pipe_list([("p1", Product(name="lamp", brand="b1")), ("p2", Product(name="desk", brand="b1"))])
        yield driver


def products(driver):
    """Return the topic of products."""
    return driver.create_input_topic("products", TEXT, Serdes.pydantic(Product))


def brands(driver):
    """Return the topic of brands."""
    return driver.create_input_topic("brands", TEXT, TEXT)


def offers(driver):
    """Return the offers since the last call, by product; None is a deleted one."""
    return driver.create_output_topic("offers", TEXT, Serdes.pydantic(Offer)).read_key_values_to_map()


def test_products_have_their_brands_name(driver):
    """Each product is joined with the brand that it refers to."""
    assert offers(driver) == {
        "p1": Offer(product="lamp", brand="Acme"),
        "p2": Offer(product="desk", brand="Acme"),
    }


def test_renamed_brand_changes_all_its_products(driver):
    """A change on the right side reaches every row that refers to it."""
    offers(driver)
    brands(driver).pipe_input("b1", "Apex")
    assert {key: offer.brand for key, offer in offers(driver).items()} == {"p1": "Apex", "p2": "Apex"}


def test_product_of_another_brand(driver):
    """A change of the foreign key finds the other brand, and the old one no longer matters."""
    products(driver).pipe_input("p1", Product(name="lamp", brand="b2"))
    assert offers(driver)["p1"].brand == "Zenith"
    brands(driver).pipe_input("b1", None)
    assert offers(driver) == {"p2": None}


def test_unknown_brand(driver):
    """A product whose brand is not there is in no offer until it is."""
    offers(driver)
    products(driver).pipe_input("p3", Product(name="chair", brand="b3"))
    assert "p3" not in offers(driver)
    brands(driver).pipe_input("b3", "Nadir")
    assert offers(driver) == {"p3": Offer(product="chair", brand="Nadir")}
