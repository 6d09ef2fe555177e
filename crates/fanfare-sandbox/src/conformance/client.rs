//! The least HTTP client that asks a sandbox something.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

/// Longest answer that is read.
const REPLY_BYTES_MAX: u64 = 1 << 20;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Its status.
    pub status: u16,
    /// Everything after the status line, as it came: header fields, an empty line, the body.
    pub rest: String,
}

/// Sends `GET path` with these header fields on a connection of its own and reads the answer to its end.
///
/// # Errors
/// No connection, or an end before a whole head; an endpoint that is neither `unix:` nor `tcp:`.
pub async fn request(endpoint: &str, path: &str, headers: &[(&str, &str)]) -> io::Result<Reply> {
    if let Some(socket) = endpoint.strip_prefix("unix:") {
        exchange(UnixStream::connect(socket).await?, path, headers).await
    } else if let Some(address) = endpoint.strip_prefix("tcp:") {
        exchange(TcpStream::connect(address).await?, path, headers).await
    } else {
        Err(io::Error::new(io::ErrorKind::Unsupported, format!("cannot connect to {endpoint:?}")))
    }
}

async fn exchange<S>(mut stream: S, path: &str, headers: &[(&str, &str)]) -> io::Result<Reply>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut head = format!("GET {path} HTTP/1.1\r\nhost: conformance\r\nconnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut bytes = Vec::new();
    stream.take(REPLY_BYTES_MAX).read_to_end(&mut bytes).await?;
    parse(&String::from_utf8_lossy(&bytes)).ok_or_else(|| {
        io::Error::new(io::ErrorKind::UnexpectedEof, format!("{} bytes that are no answer", bytes.len()))
    })
}

/// Status and rest of a whole head.
fn parse(text: &str) -> Option<Reply> {
    let (line, rest) = text.split_once("\r\n")?;
    let status = line.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    let whole = rest.starts_with("\r\n") || rest.contains("\r\n\r\n");
    whole.then(|| Reply { status, rest: rest.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads() {
        let reply = parse("HTTP/1.1 204 No Content\r\na: b\r\n\r\n").unwrap();
        assert_eq!((reply.status, reply.rest.as_str()), (204, "a: b\r\n\r\n"));
        assert_eq!(parse("HTTP/1.1 200 OK\r\n\r\nx").unwrap().rest, "\r\nx");
        for bad in [
            "",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 200 OK\r\na: b\r\n",
            "HTTP/1.1 2x0 OK\r\n\r\n",
            "no\r\n\r\n",
        ] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }
}
