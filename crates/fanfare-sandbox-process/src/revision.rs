//! What a node needs to start sandboxes of one revision: its command, environment, files and user.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use fanfare_types::{Contract, RevisionSpec, StartFailure, StartFailureKind};

use crate::attempts::Attempts;
use crate::given::{self, CONFIG_DIR, SECRETS_DIR, SecretEnv};
use crate::launcher::protocol::Bind;
use crate::root::{DEPS_DIR, FUNCTION_DIR, MODULES_DIR, SHIM_DIR};
use crate::zygote::Zygotes;

/// The port that a program binds when it takes no inherited listener.
pub(crate) const PORT: u16 = 8080;
/// Characters of a failure's sentence.
pub(crate) const DETAIL_CHARS_MAX: usize = 300;
/// Bytes of a script that are searched for its interpreter's name, as many as the kernel looks at.
const FIRST_LINE_BYTES_MAX: u64 = 256;
/// Where a program without a slash is looked for.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";
/// First and only descriptor passed as systemd does.
pub(crate) const LISTENER_FD: i32 = 3;
/// A shim's gate.
pub(crate) const GATE_FD: i32 = 4;

/// A failed start with its sentence.
pub(crate) fn failure(kind: StartFailureKind, detail: impl AsRef<str>) -> StartFailure {
    StartFailure { kind, detail: sentence(detail.as_ref()), log_tail: String::new() }
}

/// One line within its limit of a text that user code may have written.
pub(crate) fn sentence(text: &str) -> String {
    text.chars().take(DETAIL_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A failure of the node's own.
pub(crate) fn node_failure(what: &str, error: impl std::fmt::Display) -> StartFailure {
    failure(StartFailureKind::Node, format!("{what}: {error}"))
}

/// A failure that only the function's own code can have made: it spoke, or did what is asked, in its shim's place.
pub(crate) fn meddled(what: impl std::fmt::Display) -> StartFailure {
    let detail = format!(
        "the function's code {what}: what its shim and the platform say to each other is not its to say"
    );
    failure(StartFailureKind::ImportFailed, detail)
}

/// What is wrong with what was read where the shim speaks: who wrote it, if not the system.
pub(crate) fn unread(what: &str, error: &std::io::Error) -> StartFailure {
    match error.kind() {
        ErrorKind::InvalidData => meddled(format_args!("has written {error} to the {what}'s socket")),
        _ => node_failure(what, error),
    }
}

/// A language with a shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    Python,
    Node,
}

/// How a sandbox becomes ready, and is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serving {
    /// It takes the inherited listener. It is ready when it runs: connections wait in the backlog.
    Listener,
    /// It binds [`PORT`].
    Port,
    /// A shim says so.
    Shim(Language),
}

/// Everything about a revision that is the same for each of its sandboxes.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) argv: Vec<String>,
    env: Env,
    pub(crate) binds: Vec<Bind>,
    pub(crate) serving: Serving,
}

impl Prepared {
    /// The environment of one sandbox, or of a template, with the values of its secrets.
    pub(crate) fn env(
        &self,
        sandbox: Option<&str>,
        secrets: &SecretEnv,
    ) -> Result<Vec<String>, StartFailure> {
        let mut env = self.env.clone();
        for (name, value) in secrets {
            let text = std::str::from_utf8(value.expose()).ok().filter(|text| !text.contains('\0'));
            let no_text = || format!("the secret that it has as the variable {name} is no text");
            env.set(name, text.ok_or_else(|| failure(StartFailureKind::SecretMissing, no_text()))?);
        }
        if let Some(id) = sandbox {
            env.set("FANFARE_SANDBOX_ID", id);
        }
        Ok(env.0)
    }

    /// A failure for want of an interpreter, with its name where the program is a script.
    pub(crate) fn named_interpreter(&self, failure: StartFailure) -> StartFailure {
        if failure.kind != StartFailureKind::InterpreterMissing || matches!(self.serving, Serving::Shim(_)) {
            return failure;
        }
        let program = self.argv.first().map(String::as_str).unwrap_or_default();
        let Some(interpreter) = self.first_line(program) else { return failure };
        let detail = format!(
            "the first line of {program} names the interpreter {interpreter}, which is not there for sandboxes: they see \
             the system's directories and the code"
        );
        StartFailure { detail, ..failure }
    }

    /// What stands first behind `#!` in a program.
    fn first_line(&self, program: &str) -> Option<String> {
        let bind = self.binds.iter().find(|bind| Path::new(program).starts_with(&bind.to));
        let file = match bind {
            Some(bind) => Path::new(&bind.from).join(Path::new(program).strip_prefix(&bind.to).ok()?),
            None => PathBuf::from(program),
        };
        let mut head = Vec::new();
        File::open(file).ok()?.take(FIRST_LINE_BYTES_MAX).read_to_end(&mut head).ok()?;
        let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
        let name = line.trim_ascii().split(u8::is_ascii_whitespace).next()?;
        Some(String::from_utf8_lossy(name).escape_debug().to_string()).filter(|name| !name.is_empty())
    }
}

/// A revision that this node has seen.
#[derive(Debug)]
pub(crate) struct Revision {
    pub(crate) spec: Arc<RevisionSpec>,
    /// Its own user and group; `None` where the daemon is not root.
    pub(crate) uid: Option<u32>,
    /// Computed once.
    pub(crate) prepared: Attempts<Arc<Prepared>>,
    /// Its template, for languages that have one.
    pub(crate) zygotes: Zygotes,
}

impl Revision {
    pub(crate) fn new(spec: Arc<RevisionSpec>, uid: Option<u32>) -> Self {
        Revision { spec, uid, prepared: Attempts::default(), zygotes: Zygotes::default() }
    }

    /// Name of what belongs to the revision, not to one of its sandboxes.
    pub(crate) fn name(&self) -> String {
        self.spec.id.to_string()
    }
}

/// Directories that a revision's sandboxes see.
#[derive(Debug)]
pub(crate) struct Files<'a> {
    /// The runtime's, for what the revision is given.
    pub(crate) run_dir: &'a Path,
    /// Its code.
    pub(crate) code: &'a Path,
    /// Its installed dependencies.
    pub(crate) deps: Option<&'a Path>,
    /// The shims, and the name of the Python shim's file in there.
    pub(crate) shims: Option<(&'a Path, &'a str)>,
}

/// Puts a revision's command, environment and binds together.
pub(crate) fn assemble(
    spec: &RevisionSpec,
    files: &Files<'_>,
    python: &Path,
    node: &Path,
) -> Result<Prepared, StartFailure> {
    let mut env = Env::default();
    for (name, value) in
        [("PATH", PATH), ("HOME", "/tmp"), ("TMPDIR", "/tmp"), ("LANG", "C.UTF-8"), ("PYTHONUNBUFFERED", "1")]
    {
        env.set(name, value);
    }
    spec.env.iter().for_each(|(name, value)| env.set(name, value));
    env.set("FANFARE_FUNCTION_NAME", spec.name.as_str());
    env.set("FANFARE_REVISION", &spec.id.number.to_string());
    env.set("FANFARE_MEMORY_LIMIT_MB", &(spec.sizing.limit.memory_bytes >> 20).to_string());
    let mut binds = vec![read_only(files.code, FUNCTION_DIR)?];
    if !spec.given.is_empty() {
        for inside in [SECRETS_DIR, CONFIG_DIR] {
            binds.push(read_only(&given::source(files.run_dir, spec.id, inside), inside)?);
        }
    }
    if let (Some(modules), Contract::Node { .. }) = (files.deps, &spec.contract) {
        // Where Node.js looks last, whatever kind of module asks.
        binds.push(read_only(modules, MODULES_DIR)?);
    } else if let Some(deps) = files.deps {
        binds.push(read_only(deps, DEPS_DIR)?);
        env.set("FANFARE_DEPS_DIR", DEPS_DIR);
        let path =
            spec.env.iter().find(|(name, _)| name == "PYTHONPATH").map(|(_, value)| format!(":{value}"));
        env.set("PYTHONPATH", &format!("{DEPS_DIR}{}", path.unwrap_or_default()));
    }
    let mut shim = |language: Language, file: &str, handler: &str| -> Result<Vec<String>, StartFailure> {
        let (dir, python_shim) = files.shims.ok_or_else(|| node_failure("shims", "not installed"))?;
        binds.push(read_only(dir, SHIM_DIR)?);
        env.set("FANFARE_HANDLER_FILE", file);
        env.set("FANFARE_HANDLER", handler);
        env.set("FANFARE_CODE_DIR", FUNCTION_DIR);
        env.set("FANFARE_HANDLER_PROCESSES", &spec.sizing.handler_processes.to_string());
        let argv = match language {
            Language::Python => {
                vec![text(python)?, "-s".into(), "-B".into(), format!("{SHIM_DIR}/{python_shim}")]
            }
            Language::Node => vec![text(node)?, format!("{SHIM_DIR}/{}", crate::shims::NODE_FILE)],
        };
        Ok(argv)
    };
    let (argv, serving) = match &spec.contract {
        Contract::Python { file, handler } => {
            (shim(Language::Python, file, handler)?, Serving::Shim(Language::Python))
        }
        Contract::Node { file, handler } => {
            let mut argv = shim(Language::Node, file, handler)?;
            argv.push("serve".into());
            (argv, Serving::Shim(Language::Node))
        }
        Contract::Http { command, inherits_listener, .. } => {
            let program = command.first().map(String::as_str).unwrap_or_default();
            let mut argv = vec![find_program(program, files.code)?];
            argv.extend(command.iter().skip(1).cloned());
            env.set("PORT", &PORT.to_string());
            if *inherits_listener {
                env.set("LISTEN_FDS", "1");
                // The first process of a namespace is 1, ours; the program is the next.
                env.set("LISTEN_PID", "2");
                env.set("FANFARE_LISTENER", &LISTENER_FD.to_string());
            }
            (argv, if *inherits_listener { Serving::Listener } else { Serving::Port })
        }
        Contract::Fake => {
            return Err(failure(StartFailureKind::Node, "this runtime runs programs, not `fake`"));
        }
    };
    Ok(Prepared { argv, env, binds, serving })
}

fn read_only(from: &Path, to: &str) -> Result<Bind, StartFailure> {
    Ok(Bind { from: text(from)?, to: to.to_owned(), writable: false })
}

/// A path as text: what is passed on travels as JSON.
pub(crate) fn text(path: &Path) -> Result<String, StartFailure> {
    path.to_str()
        .map(str::to_owned)
        .ok_or_else(|| node_failure("path", format!("{} is not UTF-8", path.display())))
}

/// The path inside the sandbox of the program that a command names.
fn find_program(program: &str, code: &Path) -> Result<String, StartFailure> {
    let missing =
        |why: &str| Err(failure(StartFailureKind::HandlerNotFound, format!("program {program:?} {why}")));
    let path = Path::new(program);
    if program.is_empty() {
        return missing("is empty");
    }
    if path.components().any(|c| c == Component::ParentDir) {
        return missing("must not contain `..`");
    }
    if let Ok(below) = path.strip_prefix(FUNCTION_DIR) {
        return match code.join(below).is_file() {
            true => Ok(program.to_owned()),
            false => missing("is not in the code"),
        };
    }
    if path.is_absolute() {
        return match path.is_file() {
            true => Ok(program.to_owned()),
            false => missing("is not on this node"),
        };
    }
    if code.join(path).is_file() {
        return Ok(format!("{FUNCTION_DIR}/{program}"));
    }
    if path.components().count() > 1 {
        return missing("is not in the code");
    }
    let runs =
        |file: &Path| file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    match PATH.split(':').map(|dir| Path::new(dir).join(program)).find(|file| runs(file)) {
        Some(found) => text(&found),
        None => missing("is neither in the code nor in PATH"),
    }
}

/// Environment variables, the last one of a name winning.
#[derive(Clone, Default)]
struct Env(Vec<String>);

/// Values may be secrets.
impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} variables", self.0.len())
    }
}

impl Env {
    fn set(&mut self, name: &str, value: &str) {
        self.0.retain(|entry| entry.split_once('=').is_none_or(|(n, _)| n != name));
        self.0.push(format!("{name}={value}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_the_code_first() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("bin")).unwrap();
        for file in ["sh", "bin/serve"] {
            std::fs::write(dir.path().join(file), "").unwrap();
        }
        let find = |program: &str| find_program(program, dir.path()).map_err(|f| f.kind);
        let missing = Err(StartFailureKind::HandlerNotFound);
        assert_eq!(find("sh").unwrap(), "/function/sh");
        assert_eq!(find("./bin/serve").unwrap(), "/function/./bin/serve");
        assert_eq!(find("/function/bin/serve").unwrap(), "/function/bin/serve");
        assert_eq!(find("env").unwrap(), "/usr/bin/env");
        assert_eq!(find("/bin/sh").unwrap(), "/bin/sh");
        for absent in ["", "../sh", "/function/no", "no/such", "no-such-program-at-all", "/no/such"] {
            assert_eq!(find(absent), missing, "{absent:?}");
        }
    }

    #[test]
    fn the_last_value_of_a_name_wins() {
        let mut env = Env::default();
        [("A", "1"), ("AB", "2"), ("A", "3=4")].iter().for_each(|(n, v)| env.set(n, v));
        assert_eq!(env.0, ["AB=2", "A=3=4"]);
        assert_eq!(format!("{env:?}"), "2 variables");
    }

    #[test]
    fn a_sentence_is_cut_between_characters() {
        let long = failure(StartFailureKind::Node, "é".repeat(400));
        assert_eq!(long.detail.chars().count(), DETAIL_CHARS_MAX);
        assert_eq!(sentence("one\n\u{1b}two"), "one  two");
    }
}
