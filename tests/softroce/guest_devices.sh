#!/usr/bin/env bash
# In the guest: makes its network interfaces and RDMA devices. Argument: one, veth or none (see `guest`).
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
hostname guest
ip link set lo up

# Packets of 9000 bytes give RoCE its largest MTU, 4096; it is taken over when the device is added.
mtu=9000
case $1 in
  none) ;;
  one)
    ip link add eth0 type dummy
    ip link set eth0 address 02:00:00:00:00:01 mtu $mtu up
    ip address add 10.7.0.1/24 dev eth0
    rdma link add rxe0 type rxe netdev eth0
    ;;
  veth)
    # Both ends of the wire are in one network namespace (Soft-RoCE knows no other), where the kernel would deliver
    # packets between its own addresses directly. So the table of local addresses is asked first only for packets
    # that came in by the wire; packets to the other end's address go out; all else is as usual.
    ip link add veth0 type veth peer name veth1
    echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
    for i in 0 1; do
      settings=/proc/sys/net/ipv4/conf/veth$i
      echo 1 >$settings/accept_local
      echo 0 >$settings/rp_filter
      echo 1 >$settings/arp_ignore
      echo 2 >$settings/arp_announce
      ip link set veth$i mtu $mtu up
      ip address add 10.9.0.$((i + 1))/32 dev veth$i
    done
    for i in 0 1; do
      own=10.9.0.$((i + 1)) other=10.9.0.$((2 - i))
      ip rule add pref $((10 + i)) iif veth$i lookup local
      ip rule add pref $((20 + i)) to $other lookup $((100 + i))
      ip route add $other/32 dev veth$i src $own table $((100 + i))
    done
    ip rule add pref 30 lookup local
    ip rule delete pref 0
    rdma link add rxe0 type rxe netdev veth0
    rdma link add rxe1 type rxe netdev veth1
    ;;
esac
