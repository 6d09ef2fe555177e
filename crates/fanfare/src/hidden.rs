//! Asking for what must not be shown.

use std::io::{self, BufRead, Write};

use fanfare_types::limits::SECRET_BYTES_MAX;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use crate::exit::{Exit, Failure};

/// What a line that is typed came to.
#[derive(Debug, PartialEq, Eq)]
enum Typed {
    Whole,
    Interrupted,
    TooLong,
}

/// Asks on the terminal that is standard input, which shows nothing of what is typed meanwhile.
pub(crate) fn ask(question: &str) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let failed = |e: io::Error| Failure::usage(format!("cannot ask for the value: {e}"));
    let mut line = Zeroizing::new(Vec::with_capacity(SECRET_BYTES_MAX + 1));
    let quiet = Quiet::begin().map_err(failed)?;
    let mut terminal = io::stderr().lock();
    write!(terminal, "{question}").and_then(|()| terminal.flush()).map_err(failed)?;
    let typed = type_line(io::stdin().lock(), &mut line);
    drop(quiet);
    // The one that was typed was not shown either. A terminal that is gone is no reason to fail now.
    let _ = writeln!(terminal);
    match typed.map_err(failed)? {
        Typed::Whole => Ok(line),
        Typed::Interrupted => Err(Failure::said(Exit::Usage)),
        Typed::TooLong => {
            Err(Failure::usage(format!("the value has over {SECRET_BYTES_MAX} bytes, which is the limit")))
        }
    }
}

/// Reads keys up to the end of the line. The terminal neither edits nor interrupts: it would be left mute.
fn type_line(keys: impl BufRead, line: &mut Vec<u8>) -> io::Result<Typed> {
    const INTERRUPT: u8 = 0x03;
    const END: u8 = 0x04;
    const ERASE: [u8; 2] = [0x08, 0x7f];
    const ERASE_ALL: u8 = 0x15;
    for key in io::Read::bytes(keys) {
        match key? {
            b'\r' | b'\n' | END => return Ok(Typed::Whole),
            INTERRUPT => return Ok(Typed::Interrupted),
            ERASE_ALL => line.clear(),
            key if ERASE.contains(&key) => {
                // A character of several bytes goes as a whole.
                while line.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {}
            }
            _ if line.len() >= SECRET_BYTES_MAX => return Ok(Typed::TooLong),
            key => line.push(key),
        }
    }
    Ok(Typed::Whole)
}

/// The terminal as it was, put back at the end.
struct Quiet(Termios);

impl Quiet {
    fn begin() -> io::Result<Quiet> {
        let before = tcgetattr(io::stdin())?;
        let mut quiet = before.clone();
        quiet.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
        tcsetattr(io::stdin(), OptionalActions::Flush, &quiet)?;
        Ok(Quiet(before))
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // What came after the line is dropped, too: of a value that is pasted with more lines, the shell must not run them.
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_make_a_line() {
        for (keys, typed, line) in [
            (&b"abc\rrest"[..], Typed::Whole, &b"abc"[..]),
            (b"a\x08b\x7fc\n", Typed::Whole, b"c"),
            ("ü\x7fz\n".as_bytes(), Typed::Whole, b"z"),
            (b"\x7f\x7fx\x15yz\x04", Typed::Whole, b"yz"),
            (b"ab\x03c\n", Typed::Interrupted, b"ab"),
            (b"ended", Typed::Whole, b"ended"),
        ] {
            let mut got = Vec::new();
            assert_eq!(type_line(keys, &mut got).unwrap(), typed, "{keys:?}");
            assert_eq!(got, line, "{keys:?}");
        }
        let long = vec![b'x'; SECRET_BYTES_MAX + 1];
        assert_eq!(type_line(&long[..], &mut Vec::new()).unwrap(), Typed::TooLong);
    }
}
