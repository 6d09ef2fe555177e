//! A sandbox that takes every byte for what it is, and trusts nothing.

use std::path::Path;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

/// One request as it came, by a reading that allows nothing but what RFC 9112 says has one meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Recorded {
    pub(super) line: String,
    /// In lower case, in order.
    pub(super) fields: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Recorded {
    pub(super) fn all(&self, name: &str) -> Vec<&str> {
        let named = self.fields.iter().filter(|(field, _)| field == name);
        named.map(|(_, value)| value.as_str()).collect()
    }
}

/// A request, or what was wrong with it.
pub(super) type Heard = Result<Recorded, String>;

pub(super) struct Recorder {
    pub(super) endpoint: String,
    heard: Arc<Mutex<Vec<Heard>>>,
    server: JoinHandle<()>,
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Recorder {
    pub(super) fn new(dir: &Path, number: u64) -> Self {
        let path = dir.join(format!("recorder{number}.sock"));
        let listener = UnixListener::bind(&path).unwrap();
        let heard = Arc::<Mutex<Vec<Heard>>>::default();
        let sink = heard.clone();
        let server = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, sink.clone()));
            }
        });
        Recorder { endpoint: format!("unix:{}", path.display()), heard, server }
    }

    /// What was heard since it was last asked.
    pub(super) fn take(&self) -> Vec<Heard> {
        std::mem::take(&mut self.heard.lock().unwrap())
    }
}

async fn serve(mut stream: UnixStream, heard: Arc<Mutex<Vec<Heard>>>) {
    let mut bytes = Vec::new();
    loop {
        match take_request(&mut bytes) {
            Ok(Some(recorded)) => {
                let answer = format!("{} {}", recorded.line, recorded.body.len());
                heard.lock().unwrap().push(Ok(recorded));
                let head =
                    format!("HTTP/1.1 200 OK\r\nx-recorded: 1\r\ncontent-length: {}\r\n\r\n", answer.len());
                if stream.write_all(format!("{head}{answer}").as_bytes()).await.is_err() {
                    return;
                }
            }
            Ok(None) => match stream.read_buf(&mut bytes).await {
                // A request that broke off is none.
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            },
            Err(why) => {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                heard.lock().unwrap().push(Err(format!("{why}: {text:?}")));
                return;
            }
        }
    }
}

/// Takes the request that `bytes` begin with, if it is whole.
pub(super) fn take_request(bytes: &mut Vec<u8>) -> Result<Option<Recorded>, String> {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
        check_lines(bytes, false)?;
        return Ok(None);
    };
    let head = &bytes[..end + 2];
    check_lines(head, true)?;
    // Values may hold any byte above ASCII (RFC 9110, section 5.5).
    let head: String = head.iter().copied().map(char::from).collect();
    let mut lines = head.split_terminator("\r\n");
    let line = lines.next().unwrap_or_default().to_owned();
    let words: Vec<&str> = line.split(' ').collect();
    if words.len() != 3 || words.iter().any(|word| word.is_empty()) || words[2] != "HTTP/1.1" {
        return Err("no request line".into());
    }
    let mut fields = Vec::new();
    for field in lines {
        let (name, value) = field.split_once(':').ok_or("a field without a colon")?;
        let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        if name.is_empty() || !name.bytes().all(token) {
            return Err(format!("{name:?} is no name"));
        }
        fields.push((name.to_ascii_lowercase(), value.trim_matches([' ', '\t']).to_owned()));
    }
    let mut request = Recorded { line, fields, body: Vec::new() };
    let (lengths, codings) = (request.all("content-length"), request.all("transfer-encoding"));
    if request.all("host").len() != 1 {
        return Err("not one host".into());
    }
    let rest = end + 4;
    let used = match (lengths.as_slice(), codings.as_slice()) {
        ([], []) => rest,
        ([length], []) => {
            let digits = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
            let length: usize = length.parse().ok().filter(|_| digits).ok_or("no length")?;
            if bytes.len() < rest + length {
                return Ok(None);
            }
            request.body = bytes[rest..rest + length].to_vec();
            rest + length
        }
        ([], ["chunked"]) => match take_chunks(&bytes[rest..])? {
            Some((body, used)) => {
                request.body = body;
                rest + used
            }
            None => return Ok(None),
        },
        _ => return Err("two framings".into()),
    };
    bytes.drain(..used);
    Ok(Some(request))
}

/// Every line feed ends a line, and no control character is in one.
fn check_lines(bytes: &[u8], whole: bool) -> Result<(), String> {
    for (at, byte) in bytes.iter().enumerate() {
        let fine = match byte {
            b'\n' => at > 0 && bytes[at - 1] == b'\r',
            b'\r' => bytes.get(at + 1).map_or(!whole, |next| *next == b'\n'),
            b'\t' => true,
            byte => *byte >= b' ' && *byte != 0x7f,
        };
        if !fine {
            return Err(format!("a bare {byte:#x} at {at}"));
        }
    }
    Ok(())
}

/// The body in chunks at the beginning, and how many bytes it takes.
fn take_chunks(bytes: &[u8]) -> Result<Option<(Vec<u8>, usize)>, String> {
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        let line = |from: usize| bytes[from..].windows(2).position(|w| w == b"\r\n").map(|end| from + end);
        let Some(end) = line(at) else { return Ok(None) };
        let size = std::str::from_utf8(&bytes[at..end]).map_err(|_| "no size")?;
        if size.is_empty() || !size.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(format!("{size:?} is no size"));
        }
        let size = usize::from_str_radix(size, 16).map_err(|e| e.to_string())?;
        at = end + 2;
        if size == 0 {
            // Trailers, and the empty line.
            loop {
                let Some(end) = line(at) else { return Ok(None) };
                let empty = end == at;
                check_lines(&bytes[at..end], true)?;
                at = end + 2;
                if empty {
                    return Ok(Some((body, at)));
                }
            }
        }
        if bytes.len() < at + size + 2 {
            return Ok(None);
        }
        body.extend_from_slice(&bytes[at..at + size]);
        at += size;
        if &bytes[at..at + 2] != b"\r\n" {
            return Err("a chunk is longer than it said".into());
        }
        at += 2;
    }
}
