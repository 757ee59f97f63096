//! What `CEPH_ARGS` says of the client and its file of settings.
//!
//! Ceph's own programs read these words before all others; librados reads settings only, and would
//! pass over them without a word.

/// What was found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Args {
    /// A user without `client.`.
    pub(crate) id: Option<String>,
    /// A file of settings.
    pub(crate) conf: Option<String>,
}

impl Args {
    /// Reads the words of a text.
    ///
    /// # Errors
    /// What cannot be followed.
    pub(crate) fn of(text: &str) -> Result<Self, String> {
        let mut args = Self::default();
        let mut words = text.split_whitespace();
        while let Some(word) = words.next() {
            let (key, value) = match word.split_once('=') {
                Some((key, value)) => (key, Some(value)),
                None => (word, None),
            };
            let mut value = || value.or_else(|| words.next()).map(str::to_owned);
            match key {
                "--id" | "--user" | "-i" => args.id = value(),
                "--conf" | "-c" => args.conf = value(),
                "--name" | "-n" => {
                    let name = value().unwrap_or_default();
                    let id = name.strip_prefix("client.");
                    args.id = Some(id.ok_or(format!("{name} is no client"))?.to_owned());
                }
                "--cluster" => return Err("--cluster is not read; name a file by conf=".into()),
                _ => {}
            }
        }
        Ok(args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_and_files_are_found() {
        let args = |id: &str, conf: &str| {
            let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
            Ok(Args { id: some(id), conf: some(conf) })
        };
        assert_eq!(Args::of(""), args("", ""));
        assert_eq!(Args::of("--debug-rbd=5 --id  me"), args("me", ""));
        assert_eq!(Args::of("-n client.you -c /c"), args("you", "/c"));
        assert_eq!(Args::of("--conf=/c --user=me"), args("me", "/c"));
        assert!(Args::of("--name osd.0").is_err());
        assert!(Args::of("--cluster other").is_err());
    }
}
