//! A clone is all there is: no file mentions a folder outside the repository, or of one person's machine.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;

/// Folders of a machine, and a neighbour of the repository. Written in parts, so that this file does not mention them.
const FOREIGN: &[&str] =
    &[concat!("/", "work/"), concat!("/", "root/"), concat!("/", "home/"), concat!("..", "/shared")];

/// Every mention of a foreign path in a file that is, or would be, under version control.
pub fn violations(workspace: &Workspace) -> Result<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(workspace.root())
        .output()
        .context("cannot start git, which lists the files to look at (apt-get install git)")?;
    if !output.status.success() {
        bail!("git ls-files failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let mut found = Vec::new();
    for name in String::from_utf8_lossy(&output.stdout).split('\0').filter(|name| !name.is_empty()) {
        // A file that is not text, or was deleted but not yet from the index, mentions nothing.
        let Ok(text) = fs::read_to_string(workspace.root().join(name)) else { continue };
        found.extend(violations_in(name, &text));
    }
    Ok(found)
}

fn violations_in(name: &str, text: &str) -> Vec<String> {
    let depth = Path::new(name).components().count() - 1;
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let foreign = FOREIGN.iter().find(|path| mentions(line, path)).map(|path| (*path).to_owned());
        let above = (steps_up(line) > depth).then(|| "../".repeat(depth + 1));
        if let Some(path) = foreign.or(above) {
            found.push(format!("{name}:{number}: mentions `{path}`, a path outside the repository"));
        }
    }
    found
}

/// Whether `line` holds `path` as the beginning of a path, not as the middle of a longer one.
fn mentions(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|c| !c.is_alphanumeric() && !matches!(c, '_' | '-' | '.' | '/' | '}' | ')' | '*'))
    })
}

/// The longest run of `../` in `line`.
fn steps_up(line: &str) -> usize {
    const UP: &str = "../";
    let mut longest = 0;
    for (at, _) in line.match_indices(UP) {
        let mut steps = 0;
        while line[at + steps * UP.len()..].starts_with(UP) {
            steps += 1;
        }
        // The dots of an ellipsis ("a, ...") or of a name are not a step up.
        let is_start = !line[..at].ends_with(|c: char| c == '.' || c.is_alphanumeric());
        longest = longest.max(if is_start { steps } else { 0 });
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_paths_are_found() {
        for path in FOREIGN {
            let line = format!("see {path}design.md");
            assert_eq!(violations_in("docs/a.md", &line).len(), 1, "{line}");
            let line = format!("(`{path}`)");
            assert_eq!(violations_in("docs/a.md", &line).len(), 1, "{line}");
        }
    }

    #[test]
    fn the_middle_of_a_path_is_not_its_beginning() {
        let line = format!("$folder{}output.txt", FOREIGN[0]);
        assert!(violations_in("a.md", &line).is_empty());
    }

    #[test]
    fn steps_up_stay_inside() {
        let up = "../".repeat(2);
        assert!(violations_in("crates/larder-gc/src/lib.rs", &format!("include_str!(\"{up}README.md\")")).is_empty());
        assert_eq!(violations_in("docs/a.md", &format!("[b]({up}b.md)")).len(), 1);
        assert!(violations_in("README.md", ".../ is an ellipsis").is_empty());
    }
}
