//! `larder experiment`: what it needs, and what it writes.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};

use support::{Folder, larder, larder_with, stderr, stdout};

#[test]
fn without_its_programs_it_says_where_they_come_from() {
    let folder = Folder::new();
    let output = larder(&folder).args(["experiment", "thesis-2", "-o"]).arg(folder.path("out")).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    let text = stderr(&output);
    assert!(text.contains("apps does not exist") && text.contains("cargo xtask stage"), "{text}");
    assert_eq!(fs::read_dir(folder.path("out")).unwrap().count(), 0, "nothing was measured");
}

#[test]
fn a_file_that_cannot_be_written_is_named_before_anything_runs() {
    let folder = Folder::new();
    fs::create_dir_all(folder.path("out/thesis-2.json")).unwrap();
    let output = larder(&folder).args(["experiment", "thesis-2", "-o"]).arg(folder.path("out")).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("out/thesis-2.json: Is a directory"), "{}", stderr(&output));
}

#[test]
fn a_folder_that_cannot_be_made_is_named_before_anything_runs() {
    let folder = Folder::new();
    fs::write(folder.path("file"), "").unwrap();
    let output = larder(&folder).args(["experiment", "thesis-3", "-o"]).arg(folder.path("file/out")).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("file/out cannot be made"), "{}", stderr(&output));
}

#[test]
fn who_interrupts_it_is_told_so_and_finds_no_files() {
    let Some(stage) = std::env::var_os("LARDER_STAGE") else { return };
    if !Path::new(&stage).join("apps/cube").is_file() {
        eprintln!("SKIPPED: the programs were not compiled (apt-get install gcc libc6-dev)");
        return;
    }
    let folder = Folder::new();
    let mut tool = larder_with(&Path::new(&stage).join("lib"))
        .args(["experiment", "thesis-5", "--output"])
        .arg(&folder.0)
        .process_group(0)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(tool.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("1 of ") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "it ended by itself");
    }
    // As a terminal does: to everybody in the group.
    // SAFETY: the call touches no memory.
    assert_eq!(unsafe { libc::kill(-(tool.id() as libc::pid_t), libc::SIGINT) }, 0);
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    let status = tool.wait().unwrap();
    // Between two runs the signal is the tool's own.
    assert!(status.code() == Some(130) || status.signal() == Some(libc::SIGINT), "{status}: {rest}");
    assert!(status.code().is_none() || rest.contains("interrupted: nothing was written"), "{rest}");
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
}

/// Runs an experiment at its smallest on the staged Larder; returns what it printed, its page and its JSON.
fn quick(name: &str) -> Option<(String, String, serde_json::Value)> {
    let stage = std::env::var_os("LARDER_STAGE")?;
    quick_by(larder_with(&Path::new(&stage).join("lib")), Path::new(&stage), name)
}

/// The same by this tool.
fn quick_by(mut tool: Command, stage: &Path, name: &str) -> Option<(String, String, serde_json::Value)> {
    if !stage.join("apps/cube").is_file() {
        eprintln!("SKIPPED: the programs were not compiled (apt-get install gcc libc6-dev)");
        return None;
    }
    let folder = Folder::new();
    let output = tool
        .args(["experiment", name, "--quick", "--output"])
        .arg(&folder.0)
        // What is set for the heap outside does not count.
        .env("LARDER_ABLATE", "no such optimization")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let read = |suffix: &str| fs::read_to_string(folder.path(&format!("{name}.{suffix}"))).unwrap();
    let json = serde_json::from_str(&read("json")).expect("what is written is JSON");
    let page = read("html");
    for table in page.split("<table>").skip(1).filter_map(|rest| rest.split("</table>").next()) {
        for row in table.lines().filter(|line| line.contains("<td>")) {
            assert_eq!(
                row.matches("<td>").count(),
                table.matches("<th>").count(),
                "cells and columns of {row} in {table}"
            );
        }
    }
    Some((stdout(&output), page, json))
}

#[test]
fn thesis_2_has_the_thesis_numbers_beside_ours() {
    let Some((text, page, json)) = quick("thesis-2") else { return };
    for wanted in ["PS, thesis", "25.68", "79.2M", "remote block ratio", "AL"] {
        assert!(text.contains(wanted) && page.contains(wanted), "{wanted} is missing in\n{text}");
    }
    // What threads that take turns do to each figure.
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() < 4) {
        assert!(
            page.contains("a level line is the best") && page.contains("only one of them works at a time"),
            "{text}"
        );
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
fn vee05_runs_the_programs_and_has_every_row_of_table_2() {
    let Some(stage) = std::env::var_os("LARDER_STAGE") else { return };
    // The staged tool has the program that measures buffers alone beside it.
    let tool = Command::new(Path::new(&stage).join("bin/larder"));
    let Some((text, page, json)) = quick_by(tool, Path::new(&stage), "vee05") else { return };
    // The number is the paper's: the server's time in collections, 50 rooms, threads.
    for wanted in
        ["Table 1: compiler", "Figure 9: warehouse", "Table 2: chat, 1000 threads", "4143", "Buffers alone, table 2"]
    {
        assert!(text.contains(wanted) && page.contains(wanted), "{wanted} is missing in\n{text}");
    }
    let programs = json["programs"].as_array().unwrap();
    for program in ["compiler", "warehouse", "chat"] {
        let run = programs.iter().find(|run| run["program"] == program).unwrap();
        assert!(run["runs"].as_object().unwrap().len() >= 4, "{run}");
    }
    // What the paper is about: threads leave most of their buffers unused, CPUs little.
    let sleepers = programs.iter().find(|run| run["program"] == "chat" && run["threads"] == 1000).unwrap();
    let figure = |name: &str, key: &str| -> f64 { sleepers["runs"][name][0][key].as_str().unwrap().parse().unwrap() };
    if figure("CPUs", "by_processors") + figure("CPUs", "transactions") == 0.0 {
        eprintln!("SKIPPED: without restartable sequences processors have no buffers");
        return;
    }
    assert!(figure("threads", "unused_mib") > 50.0 * figure("CPUs", "unused_mib"), "{sleepers}");
    assert!(figure("threads", "young") > 10.0 * figure("ids", "young"), "{sleepers}");
    assert_eq!(figure("flip", "flips"), 1.0, "{sleepers}");
}

#[test]
fn hab_runs_its_compiler_and_has_both_tables() {
    let Some(stage) = std::env::var_os("LARDER_STAGE") else { return };
    let tool = Command::new(Path::new(&stage).join("bin/larder"));
    let Some((text, page, json)) = quick_by(tool, Path::new(&stage), "hab") else { return };
    for wanted in ["Figure 2: compiler, 80 threads", "Figure 3: compiler, 80 threads", "Table I:", "Table II:", "2.81"]
    {
        assert!(text.contains(wanted) && page.contains(wanted), "{wanted} is missing in\n{text}");
    }
    let runs = json["programs"][0]["runs"].as_object().unwrap();
    assert!(runs.contains_key("alone") && runs.contains_key("CLAB 512 KiB"), "{runs:?}");
}

#[test]
fn without_java_it_says_where_that_comes_from() {
    let folder = Folder::new();
    let output = larder(&folder)
        .args(["experiment", "hotspot", "-o"])
        .arg(folder.path("out"))
        .env("PATH", folder.path("bin"))
        .env_remove("JAVA_HOME")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125));
    let text = stderr(&output);
    assert!(text.contains("java was found neither") && text.contains("openjdk-17-jdk-headless"), "{text}");
}

#[test]
fn only_hotspot_has_programs_to_choose_from() {
    let folder = Folder::new();
    for (arguments, wanted) in [
        (["experiment", "vee05", "--only", "chat"], "--only chooses among the programs of hotspot"),
        (["experiment", "hotspot", "--only", "nbody"], "[possible values: trees, cache, compiler, warehouse, chat]"),
    ] {
        let output = larder(&folder).args(arguments).output().unwrap();
        assert!(!output.status.success());
        assert!(stderr(&output).contains(wanted), "{}", stderr(&output));
    }
}

#[test]
fn a_virtual_machine_that_fails_is_quoted() {
    let Some(stage) = std::env::var_os("LARDER_STAGE") else { return };
    if !Path::new(&stage).join("apps/vm/trees").is_file() {
        eprintln!("SKIPPED: the programs were not compiled (apt-get install gcc libc6-dev)");
        return;
    }
    let folder = Folder::new();
    let bin = folder.path("bin");
    fs::create_dir_all(&bin).unwrap();
    for (name, script) in [("java", "#!/bin/sh\necho 'no room for a heap' >&2\nexit 4\n"), ("javac", "#!/bin/sh\n")] {
        use std::os::unix::fs::PermissionsExt;
        fs::write(bin.join(name), script).unwrap();
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let output = larder_with(&Path::new(&stage).join("lib"))
        .args(["experiment", "hotspot", "--quick", "-o"])
        .arg(&folder.0)
        .env("JAVA_HOME", &folder.0)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125));
    let text = stderr(&output);
    assert!(text.contains("trees") && text.contains("no room for a heap") && text.contains("exit status: 4"), "{text}");
}

#[test]
fn hotspot_does_the_same_work_as_the_moving_heap() {
    let has = |name: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
    };
    if !has("java") || !has("javac") {
        eprintln!("SKIPPED: there is no java and javac (apt-get install openjdk-17-jdk-headless)");
        return;
    }
    let Some((text, page, json)) = quick("hotspot") else { return };
    for wanted in ["ParallelGC", "G1", "warehouse", "longest young ms", "-XX:-UseCompressedOops"] {
        assert!(text.contains(wanted) && page.contains(wanted), "{wanted} is missing in\n{text}");
    }
    assert_eq!(page.matches("<svg").count(), 15);
    let loads = json["loads"].as_array().unwrap();
    assert_eq!(loads.len(), 5);
    for load in loads {
        let of = |heap: &str, key: &str| load["runs"][heap][0]["printed"][key].as_str().unwrap().to_owned();
        let allocated = |heap: &str| of(heap, "allocated_mib").parse::<f64>().unwrap();
        for heap in ["ParallelGC", "G1"] {
            assert_eq!(of("Larder", "checksum"), of(heap, "checksum"), "{load}");
            // As near as headers and rounding allow, and what some threads' buffers had left at each collection; sockets and locks are objects in Java, in chat.
            let (ours, theirs) = (allocated("Larder"), allocated(heap));
            assert!((theirs - ours).abs() < 0.1 * ours + 0.5, "{ours} and {theirs} MiB: {load}");
        }
    }
    let young = |program: &str, heap: &str| {
        let load = loads.iter().find(|load| load["program"] == program).unwrap();
        load["runs"][heap][0]["collections"]["young"].as_u64().unwrap()
    };
    // 30 MiB through young generations of 2 MiB. Those of the run before would double it.
    for heap in ["Larder", "ParallelGC", "G1"] {
        let count = young("compiler", heap);
        assert!((16..=45).contains(&count), "{count} young collections of {heap}");
    }
}

#[test]
fn thesis_5_measures_pauses_and_what_clients_wait_for() {
    let Some((text, page, json)) = quick("thesis-5") else { return };
    for wanted in ["Conc-Soft", "Conc-VM max., E10K, thesis", "1307", "uffd, born unmarked", "metered: 50 %"] {
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
