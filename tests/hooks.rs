//! Hook files are edited whole or not at all: bytes, mode and owner of the rest stay, links are refused.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use respool::failure::{Explain, Kind};
use respool::watch::agent::{Agent, Spot};
use respool::watch::hooks::{self, Edit, HookError, Place, State, Status};

const BINARY: &str = "/usr/local/bin/respool";

fn spot(dir: &Path) -> Spot {
    Agent::OpenHands.in_project(dir)
}

fn file_in(dir: &Path) -> PathBuf {
    spot(dir).file(Agent::OpenHands)
}

fn install(dir: &Path, binary: &Path, state_dir: Option<&Path>) -> Result<Edit, HookError> {
    hooks::install(Agent::OpenHands, &spot(dir), binary, state_dir)
}

fn uninstall(dir: &Path) -> Result<Edit, HookError> {
    hooks::uninstall(Agent::OpenHands, &spot(dir))
}

fn status(
    workspace: Option<&Path>,
    home: &Path,
    binary: &Path,
    state_dir: Option<&Path>,
) -> Result<Vec<Status>, HookError> {
    let project = workspace.map(spot);
    hooks::status(Agent::OpenHands, project.as_ref(), &spot(home), binary, state_dir)
}

fn put(dir: &Path, text: &str) {
    fs::create_dir_all(dir.join(".openhands")).expect("mkdir");
    fs::write(file_in(dir), text).expect("write");
}

fn states(workspace: &Path, home: &Path, binary: &str) -> Vec<(Place, State)> {
    let all = status(Some(workspace), home, Path::new(binary), None).expect("status");
    all.into_iter().map(|s| (s.place, s.state)).collect()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("read_dir");
    entries
        .map(|e| e.expect("entry").file_name().to_string_lossy().into_owned())
        .collect()
}

#[test]
fn install_and_uninstall_leave_no_trace() {
    let dir = tempfile::tempdir().expect("temp dir");
    let binary = Path::new(BINARY);
    assert_eq!(uninstall(dir.path()).expect("nothing"), Edit::Unchanged);
    assert_eq!(install(dir.path(), binary, None).expect("install"), Edit::Written);
    assert_eq!(install(dir.path(), binary, None).expect("again"), Edit::Unchanged);
    assert_eq!(names(&dir.path().join(".openhands")), ["hooks.json"]);
    assert_eq!(uninstall(dir.path()).expect("uninstall"), Edit::Deleted);
    assert!(names(dir.path()).is_empty());
    // the folder stays if it holds anything else
    install(dir.path(), binary, None).expect("install");
    fs::write(dir.path().join(".openhands/mine"), "x").expect("write");
    assert_eq!(uninstall(dir.path()).expect("uninstall"), Edit::Deleted);
    assert_eq!(names(&dir.path().join(".openhands")), ["mine"]);
}

#[test]
fn the_rest_of_a_file_keeps_its_bytes_mode_and_owner() {
    assert!(
        nix::unistd::geteuid().is_root(),
        "this test must run as root: it checks that an owner is kept"
    );
    let dir = tempfile::tempdir().expect("temp dir");
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/openhands/v1_cli_1.16/.openhands/hooks.json");
    let text = fs::read_to_string(fixture).expect("fixture");
    put(dir.path(), &text);
    let file = file_in(dir.path());
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("chmod");
    std::os::unix::fs::chown(&file, Some(4321), Some(1234)).expect("chown");
    let kept = || {
        let stat = fs::metadata(&file).expect("stat");
        (stat.mode() & 0o7777, stat.uid(), stat.gid())
    };
    assert_eq!(
        install(dir.path(), Path::new(BINARY), None).expect("install"),
        Edit::Written
    );
    assert_eq!(kept(), (0o640, 4321, 1234));
    let with = fs::read_to_string(&file).expect("read");
    assert!(
        with.contains("/home/dev/bin/hook.sh") && with.contains(BINARY),
        "{with}"
    );
    assert_eq!(uninstall(dir.path()).expect("uninstall"), Edit::Written);
    assert_eq!(kept(), (0o640, 4321, 1234));
    assert_eq!(fs::read_to_string(&file).expect("read"), text);
    // a file made anew belongs to the owner of the folder that it is made in
    let other = tempfile::tempdir().expect("temp dir");
    std::os::unix::fs::chown(other.path(), Some(4321), Some(1234)).expect("chown");
    install(other.path(), Path::new(BINARY), None).expect("install");
    for made in [file_in(other.path()), other.path().join(".openhands")] {
        assert_eq!(
            fs::metadata(&made).expect("stat").uid(),
            4321,
            "{}",
            made.display()
        );
    }
}

#[test]
fn what_cannot_be_understood_is_not_touched() {
    let dir = tempfile::tempdir().expect("temp dir");
    for bad in ["", "{", "{\"hooks\": [", "[]", "// no JSON\n{}", "{\"Stop\": 7}"] {
        put(dir.path(), bad);
        for result in [
            install(dir.path(), Path::new(BINARY), None),
            uninstall(dir.path()),
        ] {
            let error = result.expect_err("refused");
            assert_eq!(
                (error.kind(), error.path()),
                (Kind::Damaged, Some(&*file_in(dir.path()))),
                "{bad}"
            );
        }
        assert_eq!(fs::read_to_string(file_in(dir.path())).expect("read"), bad);
        assert!(matches!(
            &states(dir.path(), Path::new("/nonexistent"), BINARY)[0].1,
            State::Unreadable(_)
        ));
    }
    assert_eq!(names(&dir.path().join(".openhands")), ["hooks.json"]);
}

#[test]
fn no_link_is_followed() {
    let dir = tempfile::tempdir().expect("temp dir");
    let elsewhere = tempfile::tempdir().expect("temp dir");
    let target = elsewhere.path().join("hooks.json");
    fs::write(&target, "{}").expect("write");
    let refused = |dir: &Path| {
        for result in [install(dir, Path::new(BINARY), None), uninstall(dir)] {
            assert!(matches!(result, Err(HookError::Refused { .. })), "{result:?}");
        }
        assert!(matches!(
            &states(dir, Path::new("/nonexistent"), BINARY)[0].1,
            State::Unreadable(_)
        ));
        assert_eq!(fs::read_to_string(&target).expect("read"), "{}");
    };
    symlink(elsewhere.path(), dir.path().join(".openhands")).expect("symlink");
    refused(dir.path());
    fs::remove_file(dir.path().join(".openhands")).expect("rm");
    fs::create_dir(dir.path().join(".openhands")).expect("mkdir");
    symlink(&target, file_in(dir.path())).expect("symlink");
    refused(dir.path());
    fs::remove_file(file_in(dir.path())).expect("rm");
    nix::unistd::mkfifo(&file_in(dir.path()), nix::sys::stat::Mode::S_IRWXU).expect("mkfifo");
    refused(dir.path());
}

#[test]
fn status_says_what_openhands_will_read() {
    let (home, work) = (
        tempfile::tempdir().expect("temp dir"),
        tempfile::tempdir().expect("temp dir"),
    );
    let (home, work) = (home.path(), work.path());
    let now = || states(work, home, BINARY);
    assert_eq!(
        now(),
        [(Place::Project, State::Absent), (Place::User, State::Absent)]
    );
    install(home, Path::new(BINARY), None).expect("install");
    assert_eq!(
        now(),
        [(Place::Project, State::Absent), (Place::User, State::Installed)]
    );
    put(work, "{}");
    assert_eq!(
        now(),
        [(Place::Project, State::Absent), (Place::User, State::Shadowed)]
    );
    install(work, Path::new("/opt/respool"), None).expect("install");
    assert_eq!(now()[0].1, State::OtherBinary("/opt/respool".into()));
    install(work, Path::new(BINARY), None).expect("install");
    assert_eq!(
        now(),
        [(Place::Project, State::Installed), (Place::User, State::Shadowed)]
    );
    uninstall(work).expect("uninstall");
    assert_eq!(fs::read_to_string(file_in(work)).expect("read"), "{}");
    // a workspace that is the home has one file, not two
    assert_eq!(states(home, home, BINARY), [(Place::User, State::Installed)]);
    let json =
        serde_json::to_value(status(None, home, Path::new(BINARY), None).expect("status")).expect("json");
    assert_eq!(json[0]["state"], "installed");
}

/// Claude Code reads both files, so neither hides the other; one that it may not run is said.
#[test]
fn claudes_settings_are_edited_beside_all_else() {
    const C: Agent = Agent::Claude;
    let dir = tempfile::tempdir().expect("temp dir");
    let (project, home) = (dir.path().join("w"), dir.path().join("h"));
    fs::create_dir_all(project.join(".claude")).expect("mkdir");
    fs::create_dir(&home).expect("mkdir");
    let (project, user) = (C.in_project(&project), C.in_home(&home, None));
    let text = "{\n  \"model\": \"opus\",\n  \"env\": {\"A\": \"hooks\"}\n}\n";
    fs::write(project.file(C), text).expect("write");
    let binary = Path::new(BINARY);
    for spot in [&project, &user] {
        assert_eq!(
            hooks::install(C, spot, binary, None).expect("install"),
            Edit::Written
        );
        assert_eq!(
            hooks::install(C, spot, binary, None).expect("again"),
            Edit::Unchanged
        );
    }
    let states = || -> Vec<State> {
        let all = hooks::status(C, Some(&project), &user, binary, None).expect("status");
        all.into_iter().map(|s| s.state).collect()
    };
    assert_eq!(states(), [State::Installed, State::Installed]);
    let off = fs::read_to_string(project.file(C)).expect("read");
    fs::write(
        project.file(C),
        off.replacen('{', "{\"disableAllHooks\": true, ", 1),
    )
    .expect("write");
    assert_eq!(states()[0], State::SwitchedOff);
    fs::write(project.file(C), off).expect("write");
    assert_eq!(hooks::uninstall(C, &project).expect("out"), Edit::Written);
    assert_eq!(fs::read_to_string(project.file(C)).expect("read"), text);
    assert_eq!(hooks::uninstall(C, &user).expect("out"), Edit::Deleted);
    assert!(!user.folder().exists());
    // a link of the agent's is not followed
    fs::remove_file(project.file(C)).expect("rm");
    symlink("/etc/passwd", project.file(C)).expect("link");
    assert!(hooks::install(C, &project, binary, None).is_err());
}
