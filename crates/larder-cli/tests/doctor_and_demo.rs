//! `larder doctor` and `larder demo`.

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use support::{Folder, larder, larder_with, stderr, stdout};

fn stock_libgc() -> Option<PathBuf> {
    let name = format!("/usr/lib/{}-linux-gnu/libgc.so.1", std::env::consts::ARCH);
    fs::canonicalize(name).ok()
}

#[test]
fn doctor_prints_json_with_every_finding() {
    let folder = Folder::new();
    let output = larder(&folder).args(["doctor", "--json"]).output().unwrap();
    assert!(output.status.success());
    let findings: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    for name in [
        "system",
        "rseq",
        "critical_sections",
        "membarrier",
        "userfaultfd",
        "pagemap_scan",
        "write_watching",
        "huge_pages",
        "overcommit",
        "address_space",
        "cgroup",
        "cpus",
        "library",
        "stock_libgc",
    ] {
        let finding = &findings[name];
        assert!(finding["found"].is_string() && finding["follows"].is_string(), "{name}: {finding}");
    }
    assert!(findings["cpus"]["value"]["allowed"].as_u64() >= Some(1));
    assert!(["thread", "mm_cid", "cpu_id"].contains(&findings["rseq"]["value"]["index"].as_str().unwrap()));
}

#[test]
fn doctor_says_when_a_tunable_turned_rseq_off() {
    let folder = Folder::new();
    let mut command = larder(&folder);
    command.env("GLIBC_TUNABLES", "glibc.malloc.check=0:glibc.pthread.rseq=0").args(["doctor", "--json"]);
    let findings: serde_json::Value = serde_json::from_str(&stdout(&command.output().unwrap())).unwrap();
    assert_eq!(findings["rseq"]["value"]["index"], "thread");
    assert_eq!(findings["rseq"]["value"]["turned_off"], true);
    assert_eq!(findings["critical_sections"]["value"]["mode"], "locks");
}

#[test]
fn doctor_reports_a_limited_address_space() {
    let folder = Folder::new();
    let mut shell = std::process::Command::new("sh");
    shell.env("LARDER_LIB", folder.path("lib"));
    shell.args(["-c", "ulimit -v 4000000 && exec \"$0\" doctor --json", env!("CARGO_BIN_EXE_larder")]);
    let findings: serde_json::Value = serde_json::from_str(&stdout(&shell.output().unwrap())).unwrap();
    assert_eq!(findings["address_space"]["value"], 4_000_000u64 * 1024);
}

#[test]
fn doctor_prints_two_lines_for_each_finding() {
    let folder = Folder::new();
    let text = stdout(&larder(&folder).arg("doctor").output().unwrap());
    assert_eq!(text.lines().count(), 26, "{text}");
}

#[test]
fn demo_compares_two_libraries() {
    let Some(stock) = stock_libgc() else {
        eprintln!("SKIPPED: no stock libgc is installed (Debian: libgc1)");
        return;
    };
    // The same library under another folder stands in for ours: what is tested is the comparison.
    let folder = Folder::new();
    symlink(stock, folder.path("libgc.so.1")).unwrap();
    let mut command = larder_with(&folder.0);
    command.args(["demo", "--threads", "2", "--bodies", "1000", "--steps", "3", "--rounds", "2"]);
    let output = command.output().unwrap();
    if stderr(&output).contains("needs a C compiler") {
        eprintln!("SKIPPED: no C compiler is installed");
        return;
    }
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    for part in ["1000 bodies, 3 steps, 2 threads", "Larder", "stock libgc", "longest pause", "peak memory"] {
        assert!(text.contains(part), "no '{part}' in\n{text}");
    }
}

#[test]
fn demo_without_a_compiler_says_what_to_install() {
    let folder = Folder::new();
    let output = larder(&folder).env("PATH", &folder.0).env_remove("CC").arg("demo").output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("C compiler"), "{}", stderr(&output));
}
