//! Headless Chromium, spoken to by its own protocol.
//!
//! The crates that speak it bring a TLS library and more; this needs a few of its messages, and
//! `--remote-debugging-pipe` takes them as JSON that ends with a zero byte, by descriptors 3 and 4.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

/// What an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// The shell gives the browser the pipes of its standard streams as descriptors 3 and 4.
const PIPES: &str = "exec \"$0\" \"$@\" 3<&0 4>&1 >/dev/null 2>&1 </dev/null";

/// A browser with one page.
pub(crate) struct Chromium {
    process: Child,
    requests: ChildStdin,
    messages: Receiver<Value>,
    last: u64,
    session: Option<String>,
    /// What it complained of.
    pub(crate) errors: Vec<String>,
    /// What it asked for, by address.
    pub(crate) requested: Vec<String>,
}

/// A browser of this machine.
pub(crate) fn find() -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    let names = ["chromium", "google-chrome", "chromium-browser"];
    std::env::split_paths(&paths)
        .flat_map(|folder| names.map(|name| folder.join(name)))
        .find(|program| program.is_file())
}

impl Chromium {
    /// Starts one, with its files in a folder.
    pub(crate) fn start(program: &Path, folder: &Path) -> Self {
        let mut process = Command::new("/bin/sh")
            .args(["-c", PIPES])
            .arg(program)
            .args(["--headless=new", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run"])
            // The sandbox refuses root.
            .args(["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking"])
            // Frames stay in the process whose errors are seen here.
            .args(["--disable-features=IsolateSandboxedIframes", "--hide-scrollbars"])
            .arg(format!("--user-data-dir={}", folder.display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let requests = process.stdin.take().unwrap();
        let mut answers = BufReader::new(process.stdout.take().unwrap());
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            while answers.read_until(0, &mut bytes).is_ok_and(|count| count > 0) {
                bytes.pop();
                let message = serde_json::from_slice(&bytes).unwrap_or_default();
                bytes.clear();
                if sender.send(message).is_err() {
                    break;
                }
            }
        });
        let (errors, requested) = (Vec::new(), Vec::new());
        let (last, session) = (0, None);
        let mut browser = Self { process, requests, messages, last, session, errors, requested };
        let target = browser.call("Target.createTarget", &json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", &attach);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        browser
    }

    /// Calls a method, and returns its result.
    pub(crate) fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.last += 1;
        let id = self.last;
        let mut request = json!({ "id": id, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            request["sessionId"] = session.as_str().into();
        }
        self.requests.write_all(format!("{request}\0").as_bytes()).unwrap();
        let answer = self.until(|message| message["id"] == id, method);
        assert!(answer["error"].is_null(), "{method} {parameters}: {}", answer["error"]);
        answer["result"].clone()
    }

    /// Opens an address, and waits until it is loaded.
    pub(crate) fn open(&mut self, address: &str) {
        let opened = self.call("Page.navigate", &json!({ "url": address }));
        assert!(opened["errorText"].is_null(), "{opened}");
        self.until(|message| message["method"] == "Page.loadEventFired", address);
    }

    /// The value of an expression, or of what its promise becomes.
    pub(crate) fn ask(&mut self, expression: &str) -> Value {
        let parameters =
            json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let answer = self.call("Runtime.evaluate", &parameters);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Messages until one that is wanted.
    fn until(&mut self, is_wanted: impl Fn(&Value) -> bool, what: &str) -> Value {
        loop {
            let message = self.messages.recv_timeout(PATIENCE);
            let message = message.unwrap_or_else(|error| panic!("{what}: {error}"));
            self.note(&message);
            if is_wanted(&message) {
                return message;
            }
        }
    }

    fn note(&mut self, message: &Value) {
        let parameters = &message["params"];
        match message["method"].as_str() {
            Some("Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Log.entryAdded") => {
                self.errors.push(parameters.to_string());
            }
            Some("Network.requestWillBeSent") => {
                let address = parameters["request"]["url"].as_str().unwrap_or_default();
                self.requested.push(address.to_owned());
            }
            _ => {}
        }
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
