//! Dependencies of JavaScript handlers: what `package.json` names, by npm.
//!
//! What is installed may run in every function whose `package.json` (the parts below) and lock are the same. So a
//! function's own files have no part in it: npm sees these two and nothing else of the code.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fanfare_types::{StartFailure, StartFailureKind};
use serde_json::{Map, Value};

use crate::build::Build;
use crate::deps::secrets;
use crate::egress::{self, Policy};
use crate::revision::{Revision, failure, node_failure, text};
use crate::root::OUT_DIR;
use crate::shared::Shared;
use crate::shims::{interpreter_key, short_hash};

/// Name of the list of dependencies.
const MANIFEST: &str = "package.json";
/// Locks of exact versions, the first that is there being npm's choice, too.
const LOCKS: [&str; 2] = ["npm-shrinkwrap.json", "package-lock.json"];
/// Name of the directory that npm installs to, and of the one that the code may bring.
const MODULES: &str = "node_modules";
/// Bytes of the list, and of the lock.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Maps from names to versions; the first two are what is installed, all of them what a lock is compared with.
const VERSIONS: [&str; 4] = ["dependencies", "optionalDependencies", "peerDependencies", "devDependencies"];
/// What else says which versions are installed.
const KEPT: [&str; 4] = ["name", "version", "overrides", "peerDependenciesMeta"];
/// Settings that are made here and not by the daemon's environment.
const OWN_SETTINGS: [&str; 9] = [
    "proxy",
    "https_proxy",
    "http_proxy",
    "noproxy",
    "cache",
    "prefix",
    "userconfig",
    "globalconfig",
    "global",
];

/// Where the modules that the code in `code` depends on are, installing them if need be; `None` when it has none, or
/// brings them along.
pub(crate) async fn node(
    shared: &Arc<Shared>,
    revision: &Revision,
    code: &Path,
) -> Result<Option<PathBuf>, StartFailure> {
    let Some(manifest) = read(code, MANIFEST)? else { return Ok(None) };
    if code.join(MODULES).is_dir() {
        return Ok(None);
    }
    let Some(manifest) = what_is_installed(&manifest)? else { return Ok(None) };
    let mut lock = None;
    for name in LOCKS {
        if lock.is_none() {
            lock = read(code, name)?.map(|text| (name, text));
        }
    }
    let npm = find_npm(&shared.options.node)?;
    let key = |program: &Path| interpreter_key(program).map_err(|e| node_failure("interpreter", e));
    let (interpreter, installer) = (key(&shared.options.node)?, key(&npm)?);
    let lock_text = lock.as_ref().map(|(_, text)| text.as_slice()).unwrap_or_default();
    let key = short_hash(&[b"npm", &manifest, lock_text, interpreter.as_bytes(), installer.as_bytes()]);
    let install = |out| install(shared, revision, &npm, manifest, lock, out);
    super::installed(shared, revision, &key, install).await.map(|dir| Some(dir.join(MODULES)))
}

fn refused(detail: impl AsRef<str>) -> StartFailure {
    failure(StartFailureKind::DependenciesFailed, detail)
}

fn read(code: &Path, name: &str) -> Result<Option<Vec<u8>>, StartFailure> {
    let file = code.join(name);
    match fs::metadata(&file) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Ok(meta) if meta.len() > FILE_BYTES_MAX => {
            Err(refused(format!("{name} has {} bytes; the limit is {FILE_BYTES_MAX}", meta.len())))
        }
        _ => fs::read(&file).map(Some).map_err(|e| node_failure(name, e)),
    }
}

/// The parts of a `package.json` that say what is installed, or `None` when nothing is. Scripts of its own are not
/// among them: they would run without the files that they are for.
fn what_is_installed(manifest: &[u8]) -> Result<Option<Vec<u8>>, StartFailure> {
    let manifest: Map<String, Value> =
        serde_json::from_slice(manifest).map_err(|e| refused(format!("{MANIFEST} cannot be read: {e}")))?;
    let versions = |list: &str| manifest.get(list).and_then(Value::as_object);
    if VERSIONS[..2].iter().all(|list| versions(list).is_none_or(Map::is_empty)) {
        return Ok(None);
    }
    for (name, version) in VERSIONS.iter().filter_map(|list| versions(list)).flatten() {
        if version.as_str().is_some_and(is_path) {
            return Err(refused(format!(
                "{MANIFEST}: {name} is a file or directory ({version}), which is not installed: deploy with a \
                 {MODULES} directory of your own, or give a version"
            )));
        }
    }
    let kept = |(name, _): &(&String, &Value)| VERSIONS.iter().chain(&KEPT).any(|kept| kept == name);
    let kept: Map<_, _> =
        manifest.iter().filter(kept).map(|(name, value)| (name.clone(), value.clone())).collect();
    serde_json::to_vec(&kept).map(Some).map_err(|e| node_failure(MANIFEST, e))
}

/// Whether npm takes a version for a place in the file system.
fn is_path(version: &str) -> bool {
    let version = version.trim().to_ascii_lowercase();
    ["file:", "link:", "workspace:", "portal:", ".", "/", "~/"].iter().any(|start| version.starts_with(start))
}

/// npm's program, which is beside the interpreter.
fn find_npm(node: &Path) -> Result<PathBuf, StartFailure> {
    let npm = node.with_file_name("npm");
    npm.canonicalize().map_err(|_| {
        failure(
            StartFailureKind::InterpreterMissing,
            format!(
                "{MANIFEST} names dependencies, and npm, which would install them, is not on this node (at {}): install \
                 it, or deploy with a {MODULES} directory",
                npm.display()
            ),
        )
    })
}

async fn install(
    shared: &Arc<Shared>,
    revision: &Revision,
    npm: &Path,
    manifest: Vec<u8>,
    lock: Option<(&'static str, Vec<u8>)>,
    out: PathBuf,
) -> Result<(), StartFailure> {
    let (node, npm) = (text(&shared.options.node)?, text(npm)?);
    let how = if lock.is_some() { "ci" } else { "install" };
    let mut argv = vec![node, npm, how.into()];
    argv.extend(
        ["--omit=dev", "--no-audit", "--no-fund", "--no-update-notifier", "--no-progress", "--loglevel=warn"]
            .map(str::to_owned),
    );
    if lock.is_none() {
        argv.push("--no-package-lock".into());
    }
    let vars: Vec<(String, String)> = std::env::vars().collect();
    let settings = vars.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let config = ["/etc/npmrc", "/usr/etc/npmrc"].map(|path| fs::read_to_string(path).unwrap_or_default());
    let policy = Policy::new(&egress::NPM, settings, &config.join("\n"));
    let mut files = vec![(MANIFEST, manifest)];
    files.extend(lock);
    let modules = out.join(MODULES);
    let (env, kept_back) = environment(vars.into_iter());
    let build = Build {
        what: "deps",
        program: if how == "ci" { "npm ci" } else { "npm install" },
        function: revision.spec.id.function,
        uid: revision.uid,
        argv,
        env,
        note: kept_back.then_some(secrets::NOTE),
        // Not by `--prefix`, which would move its global settings there, too.
        cwd: OUT_DIR,
        binds: Vec::new(),
        egress: Some(Arc::new(policy)),
        out,
        timeout: super::INSTALL_TIMEOUT,
        files,
    };
    Box::pin(build.run(shared, StartFailureKind::DependenciesFailed)).await?;
    checked(&modules)
}

/// Sees to it that the modules are a directory, where what was installed, whose scripts have run, may have put anything.
fn checked(modules: &Path) -> Result<(), StartFailure> {
    match fs::symlink_metadata(modules) {
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(_) => Err(refused(format!("a package's script has put something else in the place of {MODULES}"))),
        // Not made when all that is named is optional and does not fit this machine.
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            fs::create_dir(modules).map_err(|e| node_failure("dependencies", e))
        }
        Err(e) => Err(node_failure("dependencies", e)),
    }
}

/// npm's environment: what the daemon's own says about npm, without credentials, and the only way out. Also whether there
/// were credentials.
fn environment(vars: impl Iterator<Item = (String, String)>) -> (Vec<String>, bool) {
    let proxy = format!("http://127.0.0.1:{}", egress::PORT);
    let mut env: Vec<String> = [
        "PATH=/usr/local/bin:/usr/bin:/bin",
        "HOME=/tmp",
        "TMPDIR=/tmp",
        "LANG=C.UTF-8",
        "npm_config_cache=/tmp/.npm",
        "npm_config_noproxy=",
    ]
    .map(str::to_owned)
    .to_vec();
    for name in ["http_proxy", "https_proxy", "npm_config_proxy", "npm_config_https_proxy"] {
        env.push(format!("{name}={proxy}"));
    }
    let mut kept_back = false;
    for (name, value) in vars {
        let setting = name.to_ascii_lowercase().strip_prefix("npm_config_").map(|s| s.replace('-', "_"));
        let Some(setting) = setting.filter(|s| !OWN_SETTINGS.contains(&s.as_str())) else { continue };
        let kept = secrets::without_credentials(&value);
        kept_back |= kept != value;
        match secrets::is_npm_credential(&setting) {
            true => kept_back = true,
            false => env.push(format!("{name}={kept}")),
        }
    }
    (env, kept_back)
}

/// A list of any bytes: what is kept of it means the same again.
pub(crate) fn fuzz(manifest: &[u8]) {
    if let Ok(Some(kept)) = what_is_installed(manifest) {
        assert_eq!(what_is_installed(&kept), Ok(Some(kept)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_reduced_to_what_is_installed() {
        let reduced = |text: &str| what_is_installed(text.as_bytes());
        for nothing in
            ["{}", r#"{"type": "module"}"#, r#"{"dependencies": {}, "devDependencies": {"a": "1"}}"#]
        {
            assert_eq!(reduced(nothing), Ok(None), "{nothing}");
        }
        let with_more =
            r#"{"name": "x", "scripts": {"preinstall": "true"}, "dependencies": {"ms": "^2.1.3"}}"#;
        let kept = reduced(with_more).unwrap().unwrap();
        assert_eq!(String::from_utf8(kept).unwrap(), r#"{"dependencies":{"ms":"^2.1.3"},"name":"x"}"#);
        for refused in [
            "[]",
            "{",
            r#"{"dependencies": {"a": "file:lib"}}"#,
            r#"{"optionalDependencies": {"a": "./lib"}}"#,
            r#"{"dependencies": {"b": "1"}, "devDependencies": {"a": "Link:../lib"}}"#,
        ] {
            assert_eq!(reduced(refused).unwrap_err().kind, StartFailureKind::DependenciesFailed, "{refused}");
        }
    }

    #[test]
    fn npm_gets_what_concerns_it_and_nothing_else() {
        let of = |vars: &[(&str, &str)]| {
            let owned: Vec<_> = vars.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
            environment(owned.into_iter())
        };
        let plain = [
            ("NPM_CONFIG_REGISTRY", "https://registry"),
            ("npm_config_https_proxy", "http://proxy"),
            ("npm_config_userconfig", "/root/.npmrc"),
            ("AWS_SECRET_ACCESS_KEY", "canary"),
        ];
        let (env, kept_back) = of(&plain);
        assert!(!kept_back && env.contains(&"NPM_CONFIG_REGISTRY=https://registry".to_owned()), "{env:?}");
        for absent in ["//proxy", "canary", ".npmrc"] {
            assert!(!env.iter().any(|e| e.contains(absent)), "{absent}: {env:?}");
        }
        for (name, value) in [
            ("npm_config_//registry/:_authToken", "canary"),
            ("NPM_CONFIG__AUTH", "canary"),
            ("npm_config__password", "canary"),
            ("npm_config_@scope:registry", "https://me:canary@scoped/"),
        ] {
            let (env, kept_back) = of(&[plain[0], (name, value)]);
            assert!(kept_back && env.contains(&"NPM_CONFIG_REGISTRY=https://registry".to_owned()), "{env:?}");
            assert!(!env.iter().any(|e| e.contains("canary")), "{name}: {env:?}");
        }
    }
}
