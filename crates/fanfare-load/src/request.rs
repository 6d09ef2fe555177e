//! What is sent for an invocation.

use std::io::Write as _;

use fanfare_trace::Invocation;

/// What is called for one function of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The function's name at the platform.
    pub name: String,
    /// Whether it obeys the fields that ask for time and memory; otherwise it is only called.
    pub obeys: bool,
}

/// Writes requests.
#[derive(Clone, Debug)]
pub struct Requests {
    /// `HOST:PORT` of the data plane.
    pub host: String,
    /// By the plan's functions.
    pub targets: Vec<Target>,
}

impl Requests {
    /// Writes the request of an invocation: the fields are InVitro's, with which the built-in function `trace` is driven,
    /// and the one with which fake sandboxes are. All of the execution is waited out (`io_percentage`), so that the
    /// machine's CPUs are the platform's.
    pub(crate) fn write(&self, invocation: &Invocation, out: &mut Vec<u8>) {
        let target = &self.targets[invocation.function as usize];
        let Invocation { execution_ms, memory_mib, .. } = invocation;
        let (name, host) = (&target.name, &self.host);
        // Writing to memory cannot fail.
        let _ = write!(out, "POST /function/{name}/ HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\n");
        if target.obeys {
            let _ = write!(
                out,
                "workload: trace\r\nfunction: {name}\r\nrequested_cpu: {execution_ms}\r\nrequested_memory: {memory_mib}\r\n\
                 multiplier: 1\r\nio_percentage: 100\r\nx-fake-sleep-ms: {execution_ms}\r\n"
            );
        }
        out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_ask_for_what_the_plan_says() {
        let target = |name: &str, obeys| Target { name: name.to_owned(), obeys };
        let requests =
            Requests { host: "h:1".to_owned(), targets: vec![target("a", true), target("b", false)] };
        let of = |function| {
            let mut out = Vec::new();
            requests.write(
                &Invocation { at_us: 0, function, execution_ms: 7, memory_mib: 9, column: 0 },
                &mut out,
            );
            String::from_utf8(out).unwrap()
        };
        let text = of(0);
        assert!(
            text.starts_with("POST /function/a/ HTTP/1.1\r\nhost: h:1\r\ncontent-length: 0\r\n"),
            "{text}"
        );
        assert!(text.contains("requested_cpu: 7\r\nrequested_memory: 9\r\n") && text.ends_with("\r\n\r\n"));
        assert_eq!(of(1), "POST /function/b/ HTTP/1.1\r\nhost: h:1\r\ncontent-length: 0\r\n\r\n");
    }
}
