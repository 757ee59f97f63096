//! The manual pages, from the definition of the command line, the examples of the verbs, the table
//! of exit statuses and those of the mount options: uext4(1), a page for each verb, uext4(5).

use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Command;
use clap_mangen::Man;

use crate::{examples, exit_status, mount_options, text};

/// A page: the file's name in `man1` or `man5`, and its text.
pub(crate) struct Page {
    pub(crate) name: String,
    pub(crate) section: u8,
    pub(crate) text: Vec<u8>,
}

impl Page {
    /// `uext4-ls.1`.
    pub(crate) fn file(&self) -> String {
        format!("{}.{}", self.name, self.section)
    }
}

/// All pages.
///
/// # Errors
/// None but those of writing to memory.
pub(crate) fn all(command: Command) -> io::Result<Vec<Page>> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add(&command, &mut pages)?;
    pages.push(options(&command)?);
    Ok(pages)
}

/// The page of a command and those of its verbs.
fn add(command: &Command, pages: &mut Vec<Page>) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let text = page(command, &name)?;
    pages.push(Page { name, section: 1, text });
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        add(verb, pages)?;
    }
    Ok(())
}

fn page(command: &Command, name: &str) -> io::Result<Vec<u8>> {
    // Its sections are all here; those that the crate makes of other text are made below.
    let man = Man::new(command.clone()).manual("uext4").source(source());
    let mut text = Vec::new();
    title(&mut text, name, 1)?;
    name_section(&mut text, command, name)?;
    synopsis(&mut text, command)?;
    let (examples, more) = examples::of(command);
    let verb = name.split('-').nth(1).unwrap_or_default();
    let long = command.get_long_about().map(ToString::to_string);
    let says = match verb {
        "mount" => "The options of -o are in uext4(5).".to_owned(),
        "" => more.clone(),
        _ => long.unwrap_or_default(),
    };
    if !says.is_empty() {
        heading(&mut text, "DESCRIPTION")?;
        text.write_all(format!("{}\n", escaped(&says)).as_bytes())?;
    }
    let mut options = Vec::new();
    man.render_options_section(&mut options)?;
    // Formatters warn of an empty line between breaks.
    let options = String::from_utf8_lossy(&options).replace("\n.br\n\n.br\n", "\n.sp\n");
    text.write_all(options.as_bytes())?;
    if command.has_subcommands() {
        let mut verbs = Vec::new();
        man.render_subcommands_section(&mut verbs)?;
        let verbs = String::from_utf8_lossy(&verbs).replace(".SH SUBCOMMANDS", ".SH VERBS");
        text.write_all(verbs.as_bytes())?;
    }
    if !more.is_empty() && !matches!(verb, "" | "mount") {
        lines(&mut text, "NOTES", &more)?;
    }
    heading(&mut text, "EXIT STATUS")?;
    for (status, says) in exit_status::of(verb) {
        tagged(&mut text, status, says)?;
    }
    if !examples.is_empty() {
        heading(&mut text, "EXAMPLES")?;
        for (command, what) in &examples {
            tagged(&mut text, command, what)?;
        }
    }
    heading(&mut text, "SEE ALSO")?;
    let others = match verb {
        "" => "uext4(5), mke2fs(8), e2fsck(8), ext4(5)",
        "mount" | "umount" => "uext4(1), uext4(5), mount(8), fstab(5)",
        _ => "uext4(1)",
    };
    text.write_all(format!("{others}\n").as_bytes())?;
    Ok(text)
}

/// The page of the mount options.
fn options(command: &Command) -> io::Result<Page> {
    let mut text = Vec::new();
    title(&mut text, "uext4", 5)?;
    heading(&mut text, "NAME")?;
    writeln!(text, "uext4 \\- mount options of uext4")?;
    heading(&mut text, "DESCRIPTION")?;
    writeln!(
        text,
        "An ext4 image is mounted by uext4-mount(1), or by mount(8) with the type uext4. Options \
         are words, separated by commas, behind -o or in the fourth field of fstab(5).",
    )?;
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    paragraph(&mut text, &format!("uext4 is {about}. Defaults are in brackets."))?;
    for (title, entries) in mount_options::manual() {
        heading(&mut text, title)?;
        for entry in entries {
            let default = match entry.default {
                "" => String::new(),
                default => format!(" [{default}]"),
            };
            tagged(&mut text, &entry.forms.join(", "), &format!("{}{default}", entry.help))?;
        }
    }
    heading(&mut text, "EXAMPLES")?;
    tagged(&mut text, "uext4 mount -o ro,noload disk.img /mnt", "Read without replaying the log.")?;
    tagged(
        &mut text,
        "/srv/data.img /srv/data uext4 noatime,nofail 0 0",
        "A line of fstab(5): at boot, and no failure of the boot where it is missing.",
    )?;
    heading(&mut text, "SEE ALSO")?;
    text.write_all(b"uext4-mount(1), uext4-umount(1), mount(8), fstab(5), ext4(5)\n")?;
    Ok(Page { name: "uext4".into(), section: 5, text })
}

fn source() -> String {
    format!("uext4 {}", env!("CARGO_PKG_VERSION"))
}

/// The day of the pages: that of `SOURCE_DATE_EPOCH`, so that packages are reproducible, or today.
fn date() -> String {
    let given = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.parse().ok());
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    text::date(given.unwrap_or_else(now).try_into().unwrap_or(0))
}

fn title(text: &mut Vec<u8>, name: &str, section: u8) -> io::Result<()> {
    let (name, date, source) = (escaped(name), date(), escaped(&source()));
    writeln!(text, ".TH \"{name}\" \"{section}\" \"{date}\" \"{source}\" \"uext4\"")?;
    // Where a formatter has these, an apostrophe and a minus stay what they are.
    writeln!(text, ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '")
}

/// whatis(1) reads this line: name, minus, one line.
fn name_section(text: &mut Vec<u8>, command: &Command, name: &str) -> io::Result<()> {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    heading(text, "NAME")?;
    writeln!(text, "{} \\- {}", escaped(name), escaped(&about))
}

/// How it is called, as its help says.
fn synopsis(text: &mut Vec<u8>, command: &Command) -> io::Result<()> {
    heading(text, "SYNOPSIS")?;
    let usage = command.clone().render_usage().to_string();
    for form in usage.trim_start_matches("Usage:").lines().map(str::trim) {
        let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
        let rest = form.strip_prefix(name).unwrap_or(form);
        writeln!(text, "\\fB{}\\fR{}", escaped(name), escaped(rest))?;
    }
    Ok(())
}

fn heading(text: &mut Vec<u8>, title: &str) -> io::Result<()> {
    writeln!(text, ".SH \"{title}\"")
}

fn paragraph(text: &mut Vec<u8>, words: &str) -> io::Result<()> {
    writeln!(text, ".PP\n{}", escaped(words))
}

/// A paragraph below what it explains.
fn tagged(text: &mut Vec<u8>, tag: &str, words: &str) -> io::Result<()> {
    writeln!(text, ".TP\n\\fB{}\\fR\n{}", escaped(tag), escaped(words))
}

/// Text whose lines are kept.
fn lines(text: &mut Vec<u8>, title: &str, words: &str) -> io::Result<()> {
    heading(text, title)?;
    writeln!(text, ".nf\n{}\n.fi", escaped(words))
}

/// Text without a meaning for troff.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\*(Aq");
    let guarded = text.lines().map(|line| match line.starts_with('.') {
        true => format!("\\&{line}"),
        false => line.to_owned(),
    });
    guarded.collect::<Vec<_>>().join("\n")
}
