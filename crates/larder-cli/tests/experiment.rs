//! `larder experiment`: what it needs, and what it writes.

mod support;

use std::fs;
use std::path::Path;

use support::{Folder, larder, larder_with, stderr, stdout};

#[test]
fn without_its_programs_it_says_where_they_come_from() {
    let folder = Folder::new();
    let output = larder(&folder).args(["experiment", "thesis-2", "-o"]).arg(folder.path("out")).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    let text = stderr(&output);
    assert!(text.contains("apps does not exist") && text.contains("cargo xtask stage"), "{text}");
}

#[test]
fn a_folder_that_cannot_be_made_is_named_before_anything_runs() {
    let folder = Folder::new();
    fs::write(folder.path("file"), "").unwrap();
    let output = larder(&folder).args(["experiment", "thesis-3", "-o"]).arg(folder.path("file/out")).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("file/out cannot be made"), "{}", stderr(&output));
}

/// Runs an experiment at its smallest on the staged Larder; returns what it printed, its page and its JSON.
fn quick(name: &str) -> Option<(String, String, serde_json::Value)> {
    let stage = std::env::var_os("LARDER_STAGE")?;
    let stage = Path::new(&stage);
    if !stage.join("apps/cube").is_file() {
        eprintln!("SKIPPED: the programs were not compiled (apt-get install gcc libc6-dev)");
        return None;
    }
    let folder = Folder::new();
    let output = larder_with(&stage.join("lib"))
        .args(["experiment", name, "--quick", "--output"])
        .arg(&folder.0)
        // What is set for the heap outside does not count.
        .env("LARDER_ABLATE", "no such optimization")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let read = |suffix: &str| fs::read_to_string(folder.path(&format!("{name}.{suffix}"))).unwrap();
    let json = serde_json::from_str(&read("json")).expect("what is written is JSON");
    Some((stdout(&output), read("html"), json))
}

#[test]
fn thesis_2_has_the_thesis_numbers_beside_ours() {
    let Some((text, page, json)) = quick("thesis-2") else { return };
    for wanted in ["PS, thesis", "25.68", "79.2M", "remote block ratio", "AL"] {
        assert!(text.contains(wanted) && page.contains(wanted), "{wanted} is missing in\n{text}");
    }
    // Two of figure 2.4, two of 2.5, four each of 2.6 to 2.8.
    assert_eq!(page.matches("<svg").count(), 16);
    let runs = json["runs"].as_array().unwrap();
    let unfair = |version: &str| {
        let run =
            runs.iter().find(|run| run["program"] == "unfair" && run["version"] == version && run["at"] == 4).unwrap();
        run["runs"][0]["heap"]["counters"]["owned_most_consumed_blocks"].as_u64().unwrap()
    };
    // Four threads in turn: what each needs, once or four times.
    assert!(unfair("AL") >= 3 * unfair("PS"), "{} and {}", unfair("AL"), unfair("PS"));
    assert!(unfair("LPS(k=1)") <= unfair("PS") * 21 / 20 + 4, "{} and {}", unfair("LPS(k=1)"), unfair("PS"));
}

#[test]
fn thesis_3_runs_every_version_of_the_collector() {
    let Some((text, page, json)) = quick("thesis-3") else { return };
    for wanted in ["Simple", "No-NSB", "No-BMB", "15.29", "Loads of lines", "scattered"] {
        assert!(text.contains(wanted) && page.contains(wanted), "{wanted} is missing in\n{text}");
    }
    assert_eq!(page.matches("<svg").count(), 12);
    for run in json["runs"].as_array().unwrap() {
        assert!(run["runs"][0]["heap"]["cycles"].as_u64().unwrap() > 0, "{run}");
    }
    assert!(json["loads"]["independent_per_s"].as_f64().unwrap() > 0.0);
    assert!(json["marking"]["results"].as_array().unwrap().len() == 6 * 7 * 2);
}

#[test]
fn thesis_5_measures_pauses_and_what_clients_wait_for() {
    let Some((text, page, json)) = quick("thesis-5") else { return };
    for wanted in ["Conc-Soft", "Conc-VM max., E10K, thesis", "1307", "uffd, born unmarked", "metered latency"] {
        assert!(text.contains(wanted) && page.contains(wanted), "{wanted} is missing in\n{text}");
    }
    // Of each program the time and two of its pauses, and two of the server.
    assert_eq!(page.matches("<svg").count(), 11);
    let number = |run: &serde_json::Value, key: &str| run["runs"][0]["heap"][key].as_u64().unwrap();
    let mut beside = 0;
    for run in json["runs"].as_array().unwrap() {
        let version = run["version"].as_str().unwrap();
        assert_eq!(run["barrier"], ["Stop-Soft", "Conc-Soft", "barrier", "snapshot"].contains(&version), "{run}");
        assert!(number(run, "cycles") > 0, "{run}");
        match version {
            "Stop" | "Stop-Soft" => assert_eq!(number(run, "concurrent"), 0, "{run}"),
            "Conc-VM" | "Conc-Soft" | "uffd, no cleaning" => assert_eq!(number(run, "pages_cleaned"), 0, "{run}"),
            _ => {}
        }
        beside += number(run, "concurrent");
    }
    assert!(beside > 0, "no cycle marked beside its program");
    for run in json["latency"].as_array().unwrap() {
        let of = |kind: &str, part: &str| -> f64 {
            run["runs"][0]["printed"][format!("{kind}_{part}_us")].as_str().unwrap().parse().unwrap()
        };
        let parts = ["p50", "p99", "p999", "max"];
        assert!(parts.windows(2).all(|two| of("metered", two[0]) <= of("metered", two[1])), "{run}");
        // A request is not done before it was due.
        assert!(parts.iter().all(|part| of("simple", part) <= of("metered", part)), "{run}");
    }
}
