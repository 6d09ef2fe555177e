//! Secrets and files of a function, as they are named on the command line and in `fanfare.toml`.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use fanfare_api::{FileDocument, FunctionDocument, SecretPlaceName, SecretUseDocument};
use fanfare_types::limits::FILE_BYTES_MAX;

use crate::exit::Failure;

/// Where sandboxes find the files of secrets.
const SECRETS_DIR: &str = "/run/secrets/";
/// Where sandboxes find configuration files.
const CONFIG_DIR: &str = "/run/config/";

/// A secret as `NAME`, `NAME=file:FILE` or `NAME=env:VARIABLE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SecretFlag {
    place: String,
    used: SecretUseDocument,
}

/// A file as `PATH=LOCALFILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileFlag {
    path: String,
    local: String,
}

impl std::str::FromStr for SecretFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "give NAME, NAME=file:FILE or NAME=env:VARIABLE".to_owned();
        let (secret, place) = text.split_once('=').unwrap_or((text, ""));
        let (place, kind) = match place.split_once(':') {
            None if place.is_empty() => (secret, SecretPlaceName::File),
            Some(("file", file)) => (file.strip_prefix(SECRETS_DIR).unwrap_or(file), SecretPlaceName::File),
            Some(("env", variable)) => (variable, SecretPlaceName::Env),
            _ => return Err(wrong()),
        };
        if secret.is_empty() || place.is_empty() {
            return Err(wrong());
        }
        let used = SecretUseDocument { secret: secret.to_owned(), place: kind };
        Ok(SecretFlag { place: place.to_owned(), used })
    }
}

impl SecretFlag {
    pub(crate) fn apply(&self, document: &mut FunctionDocument) {
        document.secrets.insert(self.place.clone(), self.used.clone());
    }
}

impl std::str::FromStr for FileFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((path, local)) if !path.is_empty() && !local.is_empty() => {
                let path = path.strip_prefix(CONFIG_DIR).unwrap_or(path);
                Ok(FileFlag { path: path.to_owned(), local: local.to_owned() })
            }
            _ => Err("give PATH=LOCALFILE".to_owned()),
        }
    }
}

impl FileFlag {
    pub(crate) fn apply(&self, document: &mut FunctionDocument) -> Result<(), Failure> {
        let file = read(Path::new(&self.local))?;
        document.files.insert(self.path.clone(), file);
        Ok(())
    }
}

/// Puts the content of local files in the place of their names, which are relative to `directory`.
///
/// Who deploys may not be who wrote the settings: no name leads out of the directory, by itself or through links.
pub(crate) fn read_files(table: &mut toml::Table, directory: &Path) -> Result<(), Failure> {
    let Some(toml::Value::Table(files)) = table.get_mut("files") else { return Ok(()) };
    for (_, file) in files.iter_mut() {
        if let toml::Value::String(local) = file {
            let document = read_inside(directory, local)?;
            *file = toml::Value::try_from(document)
                .map_err(|e| Failure::platform(format!("cannot write the settings of a file: {e}")))?;
        }
    }
    Ok(())
}

fn read_inside(directory: &Path, local: &str) -> Result<FileDocument, Failure> {
    let end_of = |path: &Path| {
        path.canonicalize().map_err(|e| Failure::usage(format!("cannot read {}: {e}", path.display())))
    };
    let (root, end) = (end_of(directory)?, end_of(&directory.join(local))?);
    if !end.starts_with(&root) {
        let what = format!("[files] names {local}, which is outside {}", directory.display());
        return Err(Failure::usage(what)
            .next("put the file into the directory, or name it with --file PATH=LOCALFILE"));
    }
    read(&end)
}

fn read(path: &Path) -> Result<FileDocument, Failure> {
    let unreadable = |e| Failure::usage(format!("cannot read {}: {e}", path.display()));
    let mut content = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut content).map_err(unreadable)?;
    if content.len() > FILE_BYTES_MAX {
        let what = format!("{} has over {FILE_BYTES_MAX} bytes, which is the limit", path.display());
        return Err(Failure::usage(what).next("pack it with the code instead"));
    }
    Ok(FileDocument::new(&content))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_on_the_command_line() {
        let flag = |text: &str| text.parse::<SecretFlag>().map(|f| (f.place, f.used.secret, f.used.place));
        let file = |place: &str| Ok((place.to_owned(), "db".to_owned(), SecretPlaceName::File));
        assert_eq!(flag("db"), file("db"));
        assert_eq!(flag("db=file:a.txt"), file("a.txt"));
        assert_eq!(flag("db=file:/run/secrets/a.txt"), file("a.txt"));
        assert_eq!(flag("db=env:DB"), Ok(("DB".to_owned(), "db".to_owned(), SecretPlaceName::Env)));
        for bad in ["", "=env:DB", "db=DB", "db=env:", "db=mount:x", "db=file:"] {
            assert!(flag(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn files_are_read_from_beside_the_settings() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a.json"), "{}").unwrap();
        let mut table: toml::Table =
            "[files]\n\"conf/a.json\" = \"a.json\"\nb = { text = \"x\" }".parse().unwrap();
        read_files(&mut table, directory.path()).unwrap();
        assert_eq!(table["files"]["conf/a.json"]["text"].as_str(), Some("{}"));
        assert_eq!(table["files"]["b"]["text"].as_str(), Some("x"));
        let mut missing: toml::Table = "[files]\na = \"none\"".parse().unwrap();
        assert!(read_files(&mut missing, directory.path()).is_err());
        std::fs::write(directory.path().join("large"), vec![0; FILE_BYTES_MAX + 1]).unwrap();
        let mut large: toml::Table = "[files]\na = \"large\"".parse().unwrap();
        assert!(read_files(&mut large, directory.path()).is_err());
    }

    #[test]
    fn settings_read_no_file_outside_their_directory() {
        let above = tempfile::tempdir().unwrap();
        let directory = above.path().join("code");
        std::fs::create_dir_all(directory.join("conf")).unwrap();
        let outside = above.path().join("outside");
        std::fs::write(&outside, "canary").unwrap();
        std::fs::write(directory.join("a.json"), "{}").unwrap();
        let link = |name: &str, to: &Path| std::os::unix::fs::symlink(to, directory.join(name)).unwrap();
        link("out", &outside);
        link("up", Path::new(".."));
        link("in", Path::new("conf/../a.json"));
        let read = |local: &str| {
            let mut table = toml::Table::new();
            table.insert("files".into(), toml::Table::from_iter([("f".to_owned(), local.into())]).into());
            read_files(&mut table, &directory).map(|()| table["files"]["f"]["text"].clone())
        };
        let inside = directory.join("a.json");
        for good in ["a.json", "conf/../a.json", "in", inside.to_str().unwrap()] {
            assert_eq!(read(good).unwrap().as_str(), Some("{}"), "{good}");
        }
        for bad in ["../outside", "conf/../../outside", "out", "up/outside", outside.to_str().unwrap()] {
            let refused = read(bad).unwrap_err().to_string();
            assert!(refused.contains("is outside") && !refused.contains("canary"), "{bad}: {refused}");
        }
        assert!(
            FileFlag { path: "f".into(), local: outside.to_str().unwrap().into() }
                .apply(&mut FunctionDocument::new("f", fanfare_api::HandlerDocument::Fake {}))
                .is_ok()
        );
    }
}
