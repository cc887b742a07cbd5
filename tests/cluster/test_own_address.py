"""The address that other hosts are told; tests/launch/test_hosts.py needs it."""

from __future__ import annotations

import ipaddress

import pytest

from ronde.cluster.own_address import own_address


def test_on_one_host_it_is_the_main_ranks():
    assert own_address("127.0.0.1", 29500, several_hosts=False, environment={}) == "127.0.0.1"


def test_among_several_hosts_it_is_never_loopback():
    found = own_address("localhost", 29500, several_hosts=True, environment={})
    assert found is None or not ipaddress.ip_address(found).is_loopback


def test_an_interface_chosen_by_the_user_is_left_to_the_backend():
    chosen = {"GLOO_SOCKET_IFNAME": "eth0"}
    assert own_address("127.0.0.1", 29500, several_hosts=False, environment=chosen) is None


@pytest.mark.parametrize("several_hosts", [True, False])
def test_a_name_that_nobody_knows_is_no_error(several_hosts: bool):
    found = own_address("no-such-host.invalid", 29500, several_hosts=several_hosts, environment={})
    assert found is None or ipaddress.ip_address(found)
