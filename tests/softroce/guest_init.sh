#!/bin/busybox sh
# The guest's first process (see `guest`): makes a root folder out of this computer's files and a layer of memory,
# and runs the command in it.
b=/bin/busybox
if [ -e /modules.order ]; then # qemu: this is the initial RAM disk
  $b mkdir -p /proc /sys /dev /lower /layer
  $b mount -t proc proc /proc
  $b mount -t sysfs sys /sys
  $b mount -t devtmpfs dev /dev
  while read -r module; do
    $b insmod "/modules/$module" || echo "guest: module $module was not loaded" >/dev/kmsg
  done </modules.order
  options=trans=virtio,version=9p2000.L,msize=512000
  $b mount -t 9p -o "ro,$options,cache=loose" root /lower || echo "guest: no root over 9p" >/dev/kmsg
  lower=/lower layer=/layer
else # user-mode Linux: this is the computer's own root, read-only
  $b mount -t proc proc /proc
  lower=/ layer=/mnt
fi
$b mount -t tmpfs -o size=50%,mode=755 layer $layer
root=$layer/root
$b mkdir $layer/upper $layer/work $root
$b mount -t overlay -o lowerdir=$lower,upperdir=$layer/upper,workdir=$layer/work root $root
for folder in proc sys dev run tmp; do $b mkdir -p $root/$folder; done
$b mount -t proc proc $root/proc
$b mount -t sysfs sys $root/sys
$b mount -t devtmpfs dev $root/dev
$b mkdir -p $root/dev/shm $root/dev/pts
$b mount -t tmpfs -o mode=1777 shm $root/dev/shm
$b mount -t devpts -o mode=620,ptmxmode=666 pts $root/dev/pts
$b mount -t tmpfs -o mode=755 run $root/run
$b ln -sf /proc/self/fd $root/dev/fd
$b mkdir $root/run/tensorhub
if [ -e /modules.order ]; then
  $b mount -t 9p -o "rw,$options,cache=none" shared $root/run/tensorhub
  output=
  for port in /sys/class/virtio-ports/*; do # nobody makes /dev/virtio-ports here
    [ "$($b cat "$port/name")" = output ] && output=/dev/${port##*/}
  done
else
  for word in $($b cat /proc/cmdline); do
    case $word in shared=*) shared=${word#shared=} ;; esac
  done
  $b mount -t hostfs -o "$shared" none $root/run/tensorhub
  output=/run/tensorhub/output
fi
$b chroot $root /bin/bash -c "exec >>$output 2>&1 && . /run/tensorhub/command"
$b sync
$b poweroff -f
