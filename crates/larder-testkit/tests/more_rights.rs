//! Programs that have rights which who started them lacks.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};

use larder_fixed::{init, options::Options};

const CHILD: &str = "LARDER_TEST_HAS_MORE_RIGHTS";
const NAME: &str = "a_set_user_id_program_writes_no_file_for_who_started_it";
/// Exit statuses of the child.
const IS_SECURE: i32 = 40;
const IS_ORDINARY: i32 = 41;

#[test]
fn a_set_user_id_program_writes_no_file_for_who_started_it() {
    if std::env::var_os(CHILD).is_some() {
        larder_testkit::kill_after_deadline();
        init(&Options::default());
        // SAFETY: no preconditions.
        let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
        std::process::exit(if is_secure { IS_SECURE } else { IS_ORDINARY });
    }
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: only root makes programs that others run with more rights");
        return;
    }
    let place = std::env::temp_dir().join(format!("larder-more-rights-{}", std::process::id()));
    let (program, events) = (place.join("program"), place.join("events"));
    fs::create_dir_all(&events).unwrap();
    fs::set_permissions(&place, Permissions::from_mode(0o755)).unwrap();
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let run = |mode, user| -> (ExitStatus, usize) {
        fs::set_permissions(&program, Permissions::from_mode(mode)).unwrap();
        let mut command = Command::new(&program);
        command
            .args(["--exact", NAME, "--nocapture", "--test-threads=1"])
            .env(CHILD, "1")
            .env("LARDER_EVENTS_DIR", &events);
        let status = command.uid(user).status().unwrap();
        (status, fs::read_dir(&events).unwrap().count())
    };
    let secure = run(0o4755, 65534);
    let ordinary = run(0o755, 0);
    fs::remove_dir_all(&place).unwrap();
    if secure.0.code() == Some(IS_ORDINARY) {
        eprintln!("skipped: the file system has no set-user-ID programs");
        return;
    }
    assert_eq!((secure.0.code(), secure.1), (Some(IS_SECURE), 0));
    assert_eq!((ordinary.0.code(), ordinary.1), (Some(IS_ORDINARY), 1));
}
