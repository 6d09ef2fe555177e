//! A reading of requests that allows nothing but what RFC 9112 says has one meaning. The fuzzers have it, too.

/// A whole request.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Strict {
    pub method: String,
    pub target: String,
    pub fields: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, Vec<u8>)>,
}

impl Strict {
    /// The request that `bytes` are, to the last; `None`: they are a beginning of one.
    pub fn read(bytes: &[u8]) -> Result<Option<Self>, String> {
        let mut rest = bytes;
        let Some(line) = line(&mut rest)? else { return Ok(None) };
        let line = std::str::from_utf8(line).map_err(|e| e.to_string())?;
        let words: Vec<&str> = line.split(' ').collect();
        let [method, target, "HTTP/1.1"] = words[..] else {
            return Err(format!("{line:?} is no request line"));
        };
        if method.is_empty() || !method.bytes().all(is_token) || target.is_empty() {
            return Err(format!("{line:?} has no method or no target"));
        }
        let Some(fields) = fields(&mut rest)? else { return Ok(None) };
        let mut request =
            Strict { method: method.into(), target: target.into(), fields, ..Strict::default() };
        if request.all("host").len() != 1 {
            return Err("not one host".into());
        }
        let whole = match (&request.all("content-length")[..], &request.all("transfer-encoding")[..]) {
            ([], []) => true,
            ([length], []) => {
                let length = std::str::from_utf8(length).map_err(|e| e.to_string())?;
                let length: usize = length.parse().map_err(|_| format!("{length:?} is no length"))?;
                let body = rest.get(..length);
                request.body = body.unwrap_or_default().to_vec();
                rest = &rest[length.min(rest.len())..];
                body.is_some()
            }
            ([], [b"chunked"]) => request.read_chunks(&mut rest)?,
            _ => return Err("two framings".into()),
        };
        match (whole, rest) {
            (false, _) => Ok(None),
            (true, []) => Ok(Some(request)),
            (true, more) => Err(format!("{} bytes after the request", more.len())),
        }
    }

    /// The values of a field.
    pub fn all(&self, name: &str) -> Vec<&[u8]> {
        self.fields.iter().filter(|(field, _)| field == name).map(|(_, value)| value.as_slice()).collect()
    }

    /// Whether they are all there.
    fn read_chunks(&mut self, rest: &mut &[u8]) -> Result<bool, String> {
        loop {
            let Some(size) = line(rest)? else { return Ok(false) };
            let size = std::str::from_utf8(size).map_err(|e| e.to_string())?;
            if size.is_empty() || !size.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Err(format!("{size:?} is no size"));
            }
            let size = usize::from_str_radix(size, 16).map_err(|e| e.to_string())?;
            if size == 0 {
                let Some(trailers) = fields(rest)? else { return Ok(false) };
                self.trailers = trailers;
                return Ok(true);
            }
            let Some((data, after)) = rest.split_at_checked(size) else { return Ok(false) };
            self.body.extend_from_slice(data);
            *rest = after;
            match line(rest)? {
                None => return Ok(false),
                Some([]) => {}
                Some(_) => return Err("a chunk is longer than it says".into()),
            }
        }
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The next line without its end; `None`: it is not whole.
fn line<'a>(rest: &mut &'a [u8]) -> Result<Option<&'a [u8]>, String> {
    let Some(end) = rest.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
    let line = rest[..end].strip_suffix(b"\r").ok_or("a bare line feed")?;
    if line.iter().any(|byte| *byte < b' ' && *byte != b'\t' || *byte == 0x7f) {
        return Err(format!("a control character in {:?}", String::from_utf8_lossy(line)));
    }
    *rest = &rest[end + 1..];
    Ok(Some(line))
}

type Fields = Vec<(String, Vec<u8>)>;

/// The fields up to the empty line, in lower case.
fn fields(rest: &mut &[u8]) -> Result<Option<Fields>, String> {
    let mut fields = Vec::new();
    loop {
        let Some(line) = line(rest)? else { return Ok(None) };
        if line.is_empty() {
            return Ok(Some(fields));
        }
        let colon = line.iter().position(|byte| *byte == b':').ok_or("a field without a colon")?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        if name.is_empty() || !name.iter().copied().all(is_token) {
            return Err(format!("{:?} is no name", String::from_utf8_lossy(name)));
        }
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        fields.push((name, value.trim_ascii().to_vec()));
    }
}
