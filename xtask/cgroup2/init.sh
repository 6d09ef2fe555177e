#!/bin/busybox sh
# The guest's first process until the disk is there: a root of its own in memory, with the disk's /usr.
set -e
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/$module"; done < /modules/order
mount -t tmpfs -o mode=755 root /new
cd /new
mkdir dev proc sys tmp run root usr var work disk
for link in bin sbin lib lib64; do ln -s "usr/$link" "$link"; done
mount -t squashfs -o ro /dev/vda disk
mount -o bind disk/usr usr
mount -o bind disk/work work
cp -a disk/etc etc
for dir in proc sys dev; do mount -o move "/$dir" "$dir"; done
exec switch_root /new /bin/bash /work/guest.sh
