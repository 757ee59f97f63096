//! `--set opt=a,b`: variants from values of options: of uext4, of the kernel's mount (`kernel.opt`)
//! and of the file system (`mkfs.b`).

use uext4_lab::MkfsOptions;

use crate::failure::{Result, Why};

use super::failed;

/// Most variants: a slip of the keyboard must not ask for a year of runs.
const VARIANTS_MAX: usize = 256;
const KERNEL: &str = "kernel.";
/// What mount(8) makes of options before ext4 sees them, and options that are no other way to run.
const OF_MOUNT: &[&str] =
    &["loop", "offset", "sizelimit", "ro", "bind", "rbind", "move", "remount", "x-", "X-"];
const MKFS: &str = "mkfs.";

/// The variants that options ask for.
#[derive(Debug, Default)]
pub(super) struct Sets {
    /// Mount options of uext4.
    pub(super) own: Vec<String>,
    /// Those of the kernel's ext4.
    pub(super) kernel: Vec<String>,
    /// Kinds of file systems.
    pub(super) mkfs: Vec<MkfsOptions>,
}

/// The variants that these words ask for: each value of each option beside the default, or every
/// combination. Those of the kernel are tried by a mount only if `try_kernel`.
pub(super) fn variants(words: &[String], combine: bool, try_kernel: bool) -> Result<Sets> {
    let (mut own, mut kernel, mut mkfs) = (Vec::new(), Vec::new(), Vec::new());
    for word in words {
        let (option, values) = split(word)?;
        let each = values.split(',');
        if let Some(letter) = option.strip_prefix(MKFS) {
            let made = each.map(|value| MkfsOptions::new(letter, value).map_err(failed));
            mkfs.push(made.collect::<Result<Vec<_>>>()?);
        } else if let Some(option) = option.strip_prefix(KERNEL) {
            let taken = each.map(|value| of_kernel(option, value, try_kernel));
            kernel.push(taken.collect::<Result<_>>()?);
        } else {
            own.push(each.map(|value| of_uext4(option, value)).collect::<Result<_>>()?);
        }
    }
    let mut sets = Sets { own: all(own, combine), kernel: all(kernel, combine), mkfs: Vec::new() };
    let mounts = sets.own.len() + sets.kernel.len();
    let count = if combine && !mkfs.is_empty() {
        mkfs.iter().fold(mounts + 1, |count, values| count.saturating_mul(values.len()))
    } else {
        mounts + mkfs.iter().map(Vec::len).sum::<usize>()
    };
    if count > VARIANTS_MAX {
        let why = format!("{} options ask for more than {VARIANTS_MAX} variants", words.len());
        return Err(Why::new(why).at("lab", "--set"));
    }
    sets.mkfs = if combine { together(mkfs)? } else { mkfs.into_iter().flatten().collect() };
    Ok(sets)
}

/// Every combination of options of mke2fs.
fn together(sets: Vec<Vec<MkfsOptions>>) -> Result<Vec<MkfsOptions>> {
    let mut sets = sets.into_iter();
    let first = sets.next().unwrap_or_default();
    sets.try_fold(first, |all, set| {
        let pairs = all.iter().flat_map(|before| set.iter().map(move |value| (before, value)));
        pairs.map(|(before, value)| before.with(value).map_err(failed)).collect()
    })
}

/// Values of options one after the other, or every combination of them. An empty value is the
/// default, which has a run anyway.
fn all(sets: Vec<Vec<String>>, combine: bool) -> Vec<String> {
    let join = |before: &String, value: &String| match (&**before, &**value) {
        ("", one) | (one, "") => one.to_owned(),
        (before, value) => format!("{before},{value}"),
    };
    let all = if combine {
        sets.iter().fold(vec![String::new()], |all: Vec<String>, set| {
            let with = |before| set.iter().map(move |value| join(before, value));
            all.iter().flat_map(with).take(VARIANTS_MAX + 2).collect()
        })
    } else {
        sets.into_iter().flatten().collect()
    };
    all.into_iter().filter(|variant| !variant.is_empty()).collect()
}

/// The option and the values of `opt=a,b`.
fn split(word: &str) -> Result<(&str, &str)> {
    word.split_once('=')
        .filter(|(option, values)| !option.is_empty() && !values.is_empty())
        .ok_or_else(|| Why::new("not an option with values: --set opt=a,b").at("lab", word))
}

/// `on` and `off` stand for the option and `noopt`, where it has no value.
fn of_uext4(option: &str, value: &str) -> Result<String> {
    let whole = format!("{option}={value}");
    let refused = match uext4_lab::parse_options(&whole) {
        Ok(_) => return Ok(whole),
        Err(error) => error,
    };
    let plain = match value {
        "on" => option.to_owned(),
        "off" => format!("no{option}"),
        _ => return Err(failed(refused)),
    };
    match uext4_lab::parse_options(&plain) {
        Ok(_) => Ok(plain),
        Err(_) => Err(failed(refused)),
    }
}

/// The same of the kernel. An option that has no `noopt` is off in the default: it is empty then.
fn of_kernel(option: &str, value: &str, try_it: bool) -> Result<String> {
    if option.is_empty() {
        return Err(Why::new("not an option of the kernel's ext4").at("lab", KERNEL));
    }
    let (options, other) = match value {
        "on" => (option.to_owned(), None),
        "off" => (format!("no{option}"), Some(option)),
        _ => (format!("{option}={value}"), None),
    };
    if let Some(other) = OF_MOUNT.iter().find(|other| option.starts_with(**other)) {
        return Err(Why::new(format!("{other} is no option of ext4")).at("lab", option));
    }
    // A test is not the command.
    let command = std::env::current_exe().ok().filter(|_| !cfg!(test));
    let taken = |options: &str| {
        let tried = try_it.then(|| uext4_lab::try_kernel_options(options, command.as_deref()));
        tried.flatten().unwrap_or(Ok(()))
    };
    match taken(&options) {
        Ok(()) => Ok(options),
        Err(_) if other.is_some_and(|other| taken(other).is_ok()) => Ok(String::new()),
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(words: &[&str], combine: bool) -> Vec<String> {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        let Ok(sets) = variants(&words, combine, true) else { panic!("{words:?}") };
        sets.own
    }

    #[test]
    fn values_are_set_one_at_a_time_or_together() {
        let sets = ["journal_join=herd,fifo", "delalloc=off"];
        assert_eq!(all(&sets, false), ["journal_join=herd", "journal_join=fifo", "nodelalloc"]);
        let both = ["journal_join=herd,nodelalloc", "journal_join=fifo,nodelalloc"];
        assert_eq!(all(&sets, true), both);
        assert_eq!(all(&["delalloc=on,off"], false), ["delalloc", "nodelalloc"]);
        assert!(all(&[], true).is_empty());
        // With the default of the first option the second has a run as well.
        let sets = [["a", ""], ["b", "c"]].map(|set| set.map(str::to_owned).to_vec()).to_vec();
        assert_eq!(super::all(sets.clone(), true), ["a,b", "a,c", "b", "c"]);
        assert_eq!(super::all(sets, false), ["a", "b", "c"]);
    }

    #[test]
    fn file_systems_are_combined_as_well() {
        let made = |combine| {
            let words = ["mkfs.b=1024,2048", "mkfs.I=512"].map(str::to_owned);
            // Without mke2fs each of them is refused.
            let sets = variants(&words, combine, false).ok()?;
            Some(sets.mkfs.iter().map(MkfsOptions::name).collect::<Vec<_>>())
        };
        let Some(single) = made(false) else { return };
        assert_eq!(single, ["mkfs.b=1024", "mkfs.b=2048", "mkfs.I=512"]);
        let both = ["mkfs.b=1024,mkfs.I=512", "mkfs.b=2048,mkfs.I=512"].map(str::to_owned);
        assert_eq!(made(true), Some(both.to_vec()));
    }

    #[test]
    fn what_is_no_option_is_refused() {
        for word in
            ["nothing=1", "delalloc", "=a", "journal_join=", "journal_join=zebra", "mkfs.b=7"]
        {
            assert!(variants(&[word.to_owned()], false, true).is_err(), "{word}");
        }
        let many = vec!["delalloc=on,off".to_owned(); 9];
        assert!(variants(&many, true, true).is_err());
    }

    /// Where the kernel can be asked; elsewhere it has no runs either.
    #[test]
    fn options_of_the_kernel_are_tried_on_it() {
        let can_be_tried = uext4_lab::try_kernel_options("data=ordered", None).is_some();
        let sets = |word: &str| variants(&[word.to_owned()], false, true);
        let Ok(known) = sets("kernel.dioread_lock=on,off") else { panic!("refused") };
        let off = if can_be_tried { None } else { Some("nodioread_lock".to_owned()) };
        let wanted: Vec<_> = Some("dioread_lock".to_owned()).into_iter().chain(off).collect();
        assert_eq!(known.kernel, wanted);
        assert_eq!(sets("kernel.frobnicate=1").is_err(), can_be_tried);
        // A plan that is only told mounts nothing, and takes the word as it is.
        assert!(variants(&["kernel.frobnicate=1".to_owned()], false, false).is_ok());
    }
}
