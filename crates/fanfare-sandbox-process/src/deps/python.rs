//! Dependencies of Python handlers: what `requirements.txt` names, by pip.
//!
//! What is installed may run in every function whose content is the same. So a function's own files must have no part
//! in it: a list that names some is installed for that code alone, and none are imported by pip itself.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fanfare_types::{StartFailure, StartFailureKind};

use crate::build::Build;
use crate::deps::secrets;
use crate::egress::{self, Policy};
use crate::launcher::protocol::Bind;
use crate::revision::{Revision, failure, node_failure, text};
use crate::root::{FUNCTION_DIR, OUT_DIR, WHEELS_DIR};
use crate::shared::Shared;
use crate::shims::{interpreter_key, publish, short_hash};

/// Name of the list of requirements.
pub(crate) const REQUIREMENTS: &str = "requirements.txt";
/// The host's settings for pip.
const PIP_CONF: &str = "/etc/pip.conf";
/// Name of the copy, below the data directory, that installations see.
const PIP_CONF_COPY: &str = "pip.conf";
/// Bytes of the list.
const REQUIREMENTS_BYTES_MAX: u64 = 1 << 20;

/// Where the dependencies of the code in `code` are, installing them if need be; `None` when it has none.
pub(crate) async fn python(
    shared: &Arc<Shared>,
    revision: &Revision,
    code: &Path,
) -> Result<Option<PathBuf>, StartFailure> {
    let file = code.join(REQUIREMENTS);
    let list = match fs::metadata(&file) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Ok(meta) if meta.len() > REQUIREMENTS_BYTES_MAX => {
            let detail =
                format!("{REQUIREMENTS} has {} bytes; the limit is {REQUIREMENTS_BYTES_MAX}", meta.len());
            return Err(failure(StartFailureKind::DependenciesFailed, detail));
        }
        _ => fs::read(&file).map_err(|e| node_failure(REQUIREMENTS, e))?,
    };
    let interpreter = interpreter_key(&shared.options.python).map_err(|e| node_failure("interpreter", e))?;
    let code_digest = revision.spec.code.filter(|_| !stands_alone(&list)).unwrap_or_default();
    let key = short_hash(&[&list, interpreter.as_bytes(), &code_digest.0]);
    let install = |out| install(shared, revision, code, out);
    super::installed(shared, revision, &key, install).await.map(Some)
}

/// Whether a list means the same beside any code: each line is empty, a comment, or a requirement by name and version.
/// Whatever else pip understands (paths, further lists, links, options) may lead to files.
fn stands_alone(list: &[u8]) -> bool {
    // As pip's `is_archive_file`.
    const ARCHIVES: [&str; 12] =
        [".whl", ".zip", ".tar", ".gz", ".tgz", ".bz2", ".tbz", ".xz", ".txz", ".lz", ".tlz", ".lzma"];
    let by_name = |line: &str| {
        let named = line.starts_with(|c: char| c.is_ascii_alphanumeric());
        let plain = |c: char| c.is_ascii_alphanumeric() || " \t._-[],<>=!~*+()".contains(c);
        // What follows is a condition on the machine.
        let requirement = line.split(';').next().unwrap_or(line).trim_end().to_ascii_lowercase();
        named && requirement.chars().all(plain) && !ARCHIVES.iter().any(|end| requirement.ends_with(end))
    };
    let comment = |line: &str| line.is_empty() || line.starts_with('#');
    let text = std::str::from_utf8(list);
    text.is_ok_and(|text| text.lines().map(str::trim).all(|line| comment(line) || by_name(line)))
}

async fn install(
    shared: &Arc<Shared>,
    revision: &Revision,
    code: &Path,
    out: PathBuf,
) -> Result<(), StartFailure> {
    let python = text(&shared.options.python)?;
    let argv = [
        &python,
        // The working directory is the code, for paths in the list; modules in it must not take the place of pip's.
        "-I",
        "-m",
        "pip",
        "install",
        "--no-input",
        "--no-cache-dir",
        "--disable-pip-version-check",
        "--no-warn-script-location",
        "--target",
        OUT_DIR,
        "--requirement",
        REQUIREMENTS,
    ];
    let mut binds = vec![Bind { from: text(code)?, to: FUNCTION_DIR.to_owned(), writable: false }];
    let vars: Vec<(String, String)> = std::env::vars().collect();
    let (env, wheels, mut kept_back) = pip_environment(vars.iter().cloned());
    let config = fs::read_to_string(PIP_CONF).unwrap_or_default();
    if !config.is_empty() {
        let kept = secrets::without_credentials(&config);
        kept_back |= kept != config;
        let dir = &shared.options.data_dir;
        publish(dir, PIP_CONF_COPY, kept.as_bytes()).map_err(|e| node_failure(PIP_CONF, e))?;
        binds.push(Bind { from: text(&dir.join(PIP_CONF_COPY))?, to: PIP_CONF.to_owned(), writable: false });
    }
    let settings = vars.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let policy = Policy::new(&egress::PIP, settings, &config);
    if let Some(wheels) = wheels {
        binds.push(Bind { from: wheels, to: WHEELS_DIR.to_owned(), writable: false });
    }
    let build = Build {
        what: "deps",
        program: "pip install",
        function: revision.spec.id.function,
        uid: revision.uid,
        argv: argv.iter().map(|s| (*s).to_owned()).collect(),
        env,
        note: kept_back.then_some(secrets::NOTE),
        cwd: FUNCTION_DIR,
        binds,
        egress: Some(Arc::new(policy)),
        out,
        timeout: super::INSTALL_TIMEOUT,
        files: Vec::new(),
    };
    Box::pin(build.run(shared, StartFailureKind::DependenciesFailed)).await
}

/// pip's environment: what the daemon's own says about pip, without credentials, and the only way out. A local directory
/// of packages is returned to be bound, and named by its place inside. Also whether there were credentials.
fn pip_environment(vars: impl Iterator<Item = (String, String)>) -> (Vec<String>, Option<String>, bool) {
    let mut env = vec![
        "PATH=/usr/local/bin:/usr/bin:/bin".to_owned(),
        "HOME=/tmp".to_owned(),
        "TMPDIR=/tmp".to_owned(),
        "LANG=C.UTF-8".to_owned(),
        format!("http_proxy=http://127.0.0.1:{}", egress::PORT),
        format!("https_proxy=http://127.0.0.1:{}", egress::PORT),
    ];
    let (mut wheels, mut kept_back) = (None, false);
    for (name, value) in vars {
        if name == "PIP_FIND_LINKS" && !value.contains("://") {
            // A local path means nothing inside, unless it is shown there.
            let real = Path::new(&value).canonicalize().ok().filter(|path| path.is_dir());
            if let Some(real) = real.and_then(|path| path.into_os_string().into_string().ok()) {
                wheels = Some(real);
                env.push(format!("{name}={WHEELS_DIR}"));
            }
        } else if name.starts_with("PIP_") && name != "PIP_PROXY" {
            let kept = secrets::without_credentials(&value);
            kept_back |= kept != value;
            env.push(format!("{name}={kept}"));
        }
    }
    (env, wheels, kept_back)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_names_files_is_not_for_every_code() {
        for alone in [
            "",
            "# nothing\n\n",
            "numpy\nrequests[socks] >= 2.8.1, == 2.8.* ; python_version < \"3.9\" and os_name == './x'\r\n",
            "a~=1.0",
            "b (>=1,<2)",
        ] {
            assert!(stands_alone(alone.as_bytes()), "{alone:?}");
        }
        for with_files in [
            ".",
            "./lib",
            "lib/",
            "/lib",
            "../lib",
            "~/lib",
            "greet-1-py3-none-any.whl",
            "greet.TAR.gz ; os_name == 'posix'",
            "greet.zip",
            "-r more.txt",
            "-rmore.txt",
            "--constraint=c.txt",
            "-e .",
            "-f wheels",
            "--no-index",
            "greet @ file:///function/lib",
            "file:lib",
            "numpy\\\n-r more.txt",
            "numpy # comment",
            "${LIB}",
            "numpy --hash=sha256:00",
            "nu\u{e9}",
        ] {
            assert!(!stands_alone(with_files.as_bytes()), "{with_files:?}");
        }
        assert!(!stands_alone(b"\xff\xfe"));
    }

    #[test]
    fn pip_gets_what_concerns_it_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let local = dir.path().to_str().unwrap();
        let vars = [
            ("PIP_INDEX_URL", "https://index"),
            ("AWS_SECRET_ACCESS_KEY", "canary"),
            ("https_proxy", "http://proxy"),
            ("PIP_FIND_LINKS", local),
        ];
        let (env, wheels, kept_back) =
            pip_environment(vars.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())));
        assert!(!kept_back);
        assert!(env.contains(&"PIP_INDEX_URL=https://index".to_owned()));
        assert!(env.contains(&"https_proxy=http://127.0.0.1:3128".to_owned()), "{env:?}");
        assert!(!env.iter().any(|e| e.contains("//proxy")), "{env:?}");
        assert!(env.contains(&format!("PIP_FIND_LINKS={WHEELS_DIR}")));
        assert!(!env.iter().any(|e| e.contains("canary")));
        assert_eq!(wheels.as_deref(), Some(local));
        let secret = ("PIP_EXTRA_INDEX_URL".to_owned(), "https://me:canary@index/simple".to_owned());
        let (env, _, kept_back) = pip_environment([secret].into_iter());
        assert!(kept_back && env.contains(&"PIP_EXTRA_INDEX_URL=https://index/simple".to_owned()), "{env:?}");
        let (env, wheels, _) =
            pip_environment([("PIP_FIND_LINKS".to_owned(), "/no/such/dir".to_owned())].into_iter());
        assert!(wheels.is_none() && !env.iter().any(|e| e.starts_with("PIP_")));
    }
}
