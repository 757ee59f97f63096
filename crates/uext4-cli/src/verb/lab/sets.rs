//! `--set opt=a,b`: variants of uext4 from values of its options.

use crate::failure::{Result, Why};

use super::failed;

/// Most variants: a slip of the keyboard must not ask for a year of runs.
const VARIANTS_MAX: usize = 256;

/// The variants that these words ask for: each value of each option beside the default, or every
/// combination of them.
pub(super) fn variants(words: &[String], combine: bool) -> Result<Vec<String>> {
    let sets = words.iter().map(|word| values(word)).collect::<Result<Vec<_>>>()?;
    let variants: Vec<String> = if combine {
        let join = |all: Vec<String>, set: &Vec<String>| -> Vec<String> {
            let with = |before: &String| -> Vec<String> {
                let join = |value: &String| match before.is_empty() {
                    true => value.clone(),
                    false => format!("{before},{value}"),
                };
                set.iter().map(join).collect()
            };
            all.iter().flat_map(with).take(VARIANTS_MAX + 1).collect()
        };
        let all = sets.iter().fold(vec![String::new()], join);
        all.into_iter().filter(|variant| !variant.is_empty()).collect()
    } else {
        sets.into_iter().flatten().collect()
    };
    if variants.len() > VARIANTS_MAX {
        let why = format!("{} options ask for more than {VARIANTS_MAX} variants", words.len());
        return Err(Why::new(why).at("lab", "--set"));
    }
    Ok(variants)
}

/// The options of `opt=a,b`. `on` and `off` stand for the option and `noopt`, where it has no
/// value.
fn values(word: &str) -> Result<Vec<String>> {
    let (option, values) = word
        .split_once('=')
        .filter(|(option, values)| !option.is_empty() && !values.is_empty())
        .ok_or_else(|| Why::new("not an option with values: --set opt=a,b").at("lab", word))?;
    values.split(',').map(|value| one(option, value)).collect()
}

fn one(option: &str, value: &str) -> Result<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn all(words: &[&str], combine: bool) -> Vec<String> {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        let Ok(variants) = variants(&words, combine) else { panic!("{words:?}") };
        variants
    }

    #[test]
    fn values_are_set_one_at_a_time_or_together() {
        let sets = ["journal_join=herd,fifo", "delalloc=off"];
        assert_eq!(all(&sets, false), ["journal_join=herd", "journal_join=fifo", "nodelalloc"]);
        let both = ["journal_join=herd,nodelalloc", "journal_join=fifo,nodelalloc"];
        assert_eq!(all(&sets, true), both);
        assert_eq!(all(&["delalloc=on,off"], false), ["delalloc", "nodelalloc"]);
        assert!(all(&[], true).is_empty());
    }

    #[test]
    fn what_is_no_option_is_refused() {
        for word in ["nothing=1", "delalloc", "=a", "journal_join=", "journal_join=zebra"] {
            assert!(variants(&[word.to_owned()], false).is_err(), "{word}");
        }
        let many = vec!["delalloc=on,off".to_owned(); 9];
        assert!(variants(&many, true).is_err());
    }
}
