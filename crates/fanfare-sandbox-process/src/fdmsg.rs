//! Packets that carry descriptors, over `SOCK_SEQPACKET` and stream unix sockets.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use serde::de::DeserializeOwned;

use crate::sys;

/// Bytes of a message that an error repeats.
const SHOWN_BYTES_MAX: usize = 32;
/// Descriptors in one packet.
pub(crate) const FDS_MAX: usize = 16;

/// A packet as received.
#[derive(Debug, Default)]
pub(crate) struct Packet {
    /// Bytes written to the caller's buffer; 0 is the end of the stream.
    pub(crate) len: usize,
    /// Descriptors that came along; the last ones are missing when this process has too many open.
    pub(crate) fds: Vec<OwnedFd>,
    /// Sender's process id in this process's namespace, where the socket passes credentials.
    pub(crate) pid: Option<i32>,
}

/// A connected pair of sockets that keep packets apart, closed on exec.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// A connected pair whose second end goes to user code; the first one does not block.
///
/// Whoever closes the last copy of a descriptor does so for as long as its maker likes (a lingering socket: for years),
/// so none are taken from user code where the kernel can refuse them. Where it cannot, the filter of system calls
/// keeps sockets from lingering.
pub(crate) fn pair_with_user_code() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = pair()?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    match sys::refuse_descriptors(ours.as_fd()) {
        Err(e) if e.raw_os_error() != Some(libc::ENOPROTOOPT) => Err(e),
        _ => Ok((ours, theirs)),
    }
}

/// Whether this kernel refuses descriptors where it is told to.
pub(crate) fn descriptors_are_refused() -> bool {
    pair().is_ok_and(|(ours, _)| sys::refuse_descriptors(ours.as_fd()).is_ok())
}

/// Sends one packet.
pub(crate) fn send(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    if fds.len() > FDS_MAX {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let flags = flags | SendFlags::NOSIGNAL;
    let sent = loop {
        match rustix::net::sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    match sent == bytes.len() {
        true => Ok(()),
        false => Err(io::Error::from(io::ErrorKind::WriteZero)),
    }
}

/// Receives one packet. A packet larger than `buffer` is an error; that the other end was closed with packets unread,
/// of which the kernel tells first, is the end of the stream.
pub(crate) fn receive(socket: impl AsFd, buffer: &mut [u8], flags: RecvFlags) -> io::Result<Packet> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX), ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let message = loop {
        match rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CONNRESET) => return Ok(Packet::default()),
            other => break other?,
        }
    };
    let mut packet = Packet { len: message.bytes, ..Packet::default() };
    for part in control.drain() {
        match part {
            RecvAncillaryMessage::ScmRights(fds) => packet.fds.extend(fds),
            RecvAncillaryMessage::ScmCredentials(credentials) => {
                packet.pid = Some(credentials.pid.as_raw_nonzero().get());
            }
            _ => {}
        }
    }
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a packet over its limit"));
    }
    Ok(packet)
}

/// Reads a message of user code. What is none is an error of [`io::ErrorKind::InvalidData`] that repeats its beginning.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    serde_json::from_slice(bytes).map_err(|_| {
        let begin = String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_BYTES_MAX)]);
        let more = if bytes.len() > SHOWN_BYTES_MAX { "…" } else { "" };
        io::Error::new(io::ErrorKind::InvalidData, format!("{begin:?}{more}"))
    })
}

/// Receives one packet of at most `bytes_max` bytes into a buffer of just its size.
pub(crate) fn receive_sized(
    socket: impl AsFd,
    bytes_max: usize,
    flags: RecvFlags,
) -> io::Result<(Vec<u8>, Packet)> {
    // With `TRUNC` the kernel says how long the packet is, however little is asked for.
    let peek = flags | RecvFlags::PEEK | RecvFlags::TRUNC;
    let len = match rustix::net::recv(&socket, &mut [0_u8; 1], peek) {
        Err(rustix::io::Errno::CONNRESET) => 0,
        other => other?.1,
    };
    if len > bytes_max {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a packet of {len} bytes, where at most {bytes_max} are taken,"),
        ));
    }
    let mut buffer = vec![0; len];
    let packet = receive(socket, &mut buffer, flags)?;
    buffer.truncate(packet.len);
    Ok((buffer, packet))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_travel_and_oversized_packets_are_refused() {
        let (a, b) = pair().unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        send(&a, b"x", &[write.as_fd()], SendFlags::empty()).unwrap();
        drop(write);
        let mut buffer = [0; 4];
        let packet = receive(&b, &mut buffer, RecvFlags::empty()).unwrap();
        assert_eq!((packet.len, packet.fds.len(), packet.pid), (1, 1, None));
        rustix::io::write(&packet.fds[0], b"yes").unwrap();
        drop(packet);
        assert_eq!(rustix::io::read(&read, &mut buffer).unwrap(), 3);

        send(&a, b"12345", &[], SendFlags::empty()).unwrap();
        assert_eq!(
            receive(&b, &mut buffer, RecvFlags::empty()).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
        send(&a, b"12345", &[], SendFlags::empty()).unwrap();
        let (bytes, _) = receive_sized(&b, 5, RecvFlags::empty()).unwrap();
        assert_eq!(bytes, b"12345");
        send(&a, b"123456", &[], SendFlags::empty()).unwrap();
        let refused = receive_sized(&b, 5, RecvFlags::empty()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        receive_sized(&b, 6, RecvFlags::empty()).unwrap();
        let (c, d) = pair().unwrap();
        send(&c, b"never read", &[], SendFlags::empty()).unwrap();
        drop(d);
        assert_eq!(receive_sized(&c, 5, RecvFlags::empty()).unwrap().0, b"", "the other end is closed");
        let (c, d) = pair().unwrap();
        send(&c, b"never read", &[], SendFlags::empty()).unwrap();
        drop(d);
        assert_eq!(receive(&c, &mut buffer, RecvFlags::empty()).unwrap().len, 0);
        drop(a);
        assert_eq!(receive_sized(&b, 5, RecvFlags::empty()).unwrap().0, b"");
        assert_eq!(receive(&b, &mut buffer, RecvFlags::empty()).unwrap().len, 0);
    }
}
