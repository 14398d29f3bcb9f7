//! `larder locks`, with the program that measures.

#[allow(dead_code, reason = "other tests use the rest")]
mod support;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use support::{Folder, stderr, stdout};

/// The tool with the measuring program where it finds it: staged, or beside it in the target folder.
fn tool() -> Option<PathBuf> {
    let staged = std::env::var_os("LARDER_STAGE").map(|stage| PathBuf::from(stage).join("bin/larder"));
    let built = PathBuf::from(env!("CARGO_BIN_EXE_larder"));
    let has_program = |tool: &PathBuf| {
        let beside = tool.parent().unwrap();
        ["larder-locks", "../libexec/larder/larder-locks"].iter().any(|name| beside.join(name).is_file())
    };
    let found = staged.into_iter().chain([built]).find(has_program);
    if found.is_none() {
        eprintln!("SKIPPED: larder-locks is not built (cargo build -p larder-experiments)");
    }
    found
}

#[test]
fn a_short_run_prints_a_table_and_writes_both_files() {
    let Some(tool) = tool() else { return };
    let folder = Folder::new();
    let (json, html) = (folder.path("locks.json"), folder.path("locks.html"));
    let output = Command::new(tool)
        .args(["locks", "mutex", "--threads", "1,3", "--seconds", "0.01", "--rounds", "1", "--outside", "10"])
        // A whole name stands for itself, a part for all that have it.
        .args(["--only", "std,Mutex,Recip"])
        .arg("--json")
        .arg(&json)
        .arg("--html")
        .arg(&html)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("mutexes, 4 steps inside, fewer than 10 outside: million acquisitions"));
    let result: serde_json::Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let rows = result["studies"][0]["rows"].as_array().unwrap();
    let of = |name: &str, x: u64| rows.iter().find(|row| row["name"] == name && row["x"] == x).unwrap();
    for name in ["std", "Mutex", "ReciprocatingMutex"] {
        assert!(of(name, 1)["per_second"].as_f64().unwrap() > 0.0, "{name} did nothing");
        assert_eq!(of(name, 3)["admissions"].as_array().unwrap().len(), 3);
    }
    assert!(rows.iter().all(|row| row["name"] != "CLH" && row["name"] != "FairMutex"), "they were not asked for");
    let page = fs::read_to_string(html).unwrap();
    assert!(page.contains("<polyline") && page.contains("ReciprocatingMutex"));
}

#[test]
fn a_tool_without_its_program_says_how_to_get_it() {
    let folder = Folder::new();
    let alone = folder.path("larder");
    fs::copy(env!("CARGO_BIN_EXE_larder"), &alone).unwrap();
    let output = Command::new(alone).arg("locks").output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    let message = stderr(&output);
    assert!(message.contains("libexec/larder/larder-locks was not found: install Larder as a whole"), "{message}");
    assert_eq!(message.lines().count(), 1);
}

#[test]
fn a_file_that_cannot_be_written_is_said_before_anything_is_measured() {
    let folder = Folder::new();
    for option in ["--json", "--html"] {
        let output = support::larder(&folder).args(["locks", option, "/no/such/folder/file"]).output().unwrap();
        assert_eq!(output.status.code(), Some(125));
        assert!(stderr(&output).starts_with("larder: cannot write /no/such/folder/file: "), "{}", stderr(&output));
    }
}
