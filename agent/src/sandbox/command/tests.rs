use cloche_crds::sandbox::{EnvValue, Security};

use super::*;
use crate::image::{Digest, ImageConfig};
use crate::sandbox::fixture::record;

fn image(config: ImageConfig) -> ImageUse {
    ImageUse {
        digest: Digest::of(b"an image"),
        config,
    }
}

fn texts(bytes: &[Vec<u8>]) -> Vec<String> {
    bytes
        .iter()
        .map(|entry| String::from_utf8(entry.clone()).unwrap())
        .collect()
}

fn asked(argv: &[&str]) -> Request {
    Request {
        argv: argv.iter().map(|arg| arg.as_bytes().to_vec()).collect(),
        ..Request::default()
    }
}

#[test]
fn the_main_command_is_the_spec_or_the_entrypoint_with_args_or_nothing() {
    let config = ImageConfig {
        entrypoint: vec!["/entry".to_owned(), "-e".to_owned()],
        cmd: vec!["never".to_owned()],
        ..ImageConfig::default()
    };
    let cases = [
        (MainCommand::Idle, None),
        (
            MainCommand::Command(vec!["a".to_owned(), "b".to_owned()]),
            Some(vec!["a", "b"]),
        ),
        (
            MainCommand::Entrypoint(vec!["x".to_owned()]),
            Some(vec!["/entry", "-e", "x"]),
        ),
    ];
    for (command, wanted) in cases {
        let mut record = record();
        record.spec.main = command;
        let main = main(&record, &image(config.clone())).unwrap();
        assert_eq!(
            main.map(|spec| texts(&spec.argv)),
            wanted.map(|argv| argv.into_iter().map(str::to_owned).collect())
        );
    }
    let mut record = record();
    record.spec.main = MainCommand::Entrypoint(vec!["x".to_owned()]);
    assert_eq!(
        main(&record, &image(ImageConfig::default())),
        Err(CommandError::NoEntrypoint)
    );
}

#[test]
fn environment_goes_image_spec_request_and_path_always_has_a_value() {
    let mut record = record();
    let value = |name: &str, value: &str| EnvValue {
        name: name.to_owned(),
        value: value.to_owned(),
    };
    record.spec.env = vec![value("A", "spec"), value("B", "spec=with=signs")];
    let taken = [("E", "taken"), ("C", "taken")];
    let taken = taken.map(|(name, value)| (name.to_owned(), value.to_owned()));
    record.values = Some(taken.into_iter().collect());
    let config = ImageConfig {
        env: vec!["A=image".to_owned(), "C=image".to_owned()],
        ..ImageConfig::default()
    };
    let mut request = asked(&["true"]);
    request.env = vec![b"C=request".to_vec(), b"D=".to_vec()];
    let spec = session(&record, &image(config.clone()), &request).unwrap();
    let path = format!("PATH={DEFAULT_PATH}");
    assert_eq!(
        texts(&spec.env),
        [
            path.as_str(),
            "A=spec",
            "C=request",
            "B=spec=with=signs",
            "E=taken",
            "D="
        ]
    );
    let own_path = ImageConfig {
        env: vec!["PATH=/opt".to_owned()],
        ..config
    };
    assert_eq!(
        texts(&session(&record, &image(own_path), &request).unwrap().env)[0],
        "PATH=/opt"
    );
}

#[test]
fn directories_users_and_shells_fall_back_in_order() {
    let config = ImageConfig {
        working_dir: "/srv".to_owned(),
        user: "app:staff".to_owned(),
        ..ImageConfig::default()
    };
    let mut record = record();
    let cwd = |record: &SandboxRecord, config: &ImageConfig, cwd: &str| {
        let request = Request {
            cwd: cwd.to_owned(),
            ..asked(&["true"])
        };
        let spec = session(record, &image(config.clone()), &request).unwrap();
        (String::from_utf8(spec.cwd).unwrap(), spec.create_cwd)
    };
    assert_eq!(
        cwd(&record, &ImageConfig::default(), ""),
        ("/".to_owned(), true)
    );
    assert_eq!(cwd(&record, &config, ""), ("/srv".to_owned(), true));
    assert_eq!(
        cwd(&record, &config, "sub/dir"),
        ("/srv/sub/dir".to_owned(), false)
    );
    assert_eq!(
        cwd(&record, &config, "/tmp"),
        ("/tmp".to_owned(), false),
        "only its own directory is made"
    );
    record.spec.working_dir = Some("/work".to_owned());
    assert_eq!(cwd(&record, &config, ""), ("/work".to_owned(), true));

    let spec = session(&record, &image(config.clone()), &asked(&["true"])).unwrap();
    assert_eq!((spec.user.as_str(), spec.shell), ("app:staff", None));
    record.spec.shell = Some("/bin/zsh".to_owned());
    let request = Request {
        shell: Some(String::new()),
        user: "7".to_owned(),
        ..asked(&["echo hi"])
    };
    let spec = session(&record, &image(config), &request).unwrap();
    assert_eq!(
        (spec.user.as_str(), spec.shell.as_deref()),
        ("7", Some("/bin/zsh"))
    );
}

#[test]
fn the_security_context_goes_over_the_image() {
    let mut record = record();
    let config = ImageConfig {
        user: "app:staff".to_owned(),
        ..ImageConfig::default()
    };
    for (of_image, user, group, wanted) in [
        ("app:staff", None, None, "app:staff"),
        ("app:staff", Some(7), None, "7"),
        ("app:staff", Some(7), Some(8), "7:8"),
        ("app:staff", None, Some(8), "app:8"),
        ("app", None, Some(8), "app:8"),
        ("", None, Some(8), "0:8"),
        ("", None, None, "0:0"),
        ("", Some(0), None, "0"),
    ] {
        let config = ImageConfig {
            user: of_image.to_owned(),
            ..config.clone()
        };
        (record.spec.security.user, record.spec.security.group) = (user, group);
        let spec = session(&record, &image(config), &asked(&["true"])).unwrap();
        assert_eq!(spec.user, wanted);
        assert!(!spec.no_new_privileges);
    }
    record.spec.security = Security {
        groups: [9, 7].into(),
        allow_privilege_escalation: false,
        capabilities: [Capability::Kill, Capability::Chown].into(),
        ..Security::default()
    };
    let spec = session(&record, &image(config.clone()), &asked(&["true"])).unwrap();
    assert_eq!(
        (spec.capabilities, spec.no_new_privileges),
        (0b10_0001, true)
    );
    assert_eq!(spec.extra_groups, [7, 9]);
    record.spec.security.capabilities.clear();
    let spec = session(&record, &image(config), &asked(&["true"])).unwrap();
    assert_eq!(spec.capabilities, 0);
}

#[test]
fn nobody_gets_net_raw_and_everybody_a_process_limit() {
    let spec = session(&record(), &image(ImageConfig::default()), &asked(&["true"])).unwrap();
    assert_eq!(spec.capabilities & (1 << 13), 0);
    assert_eq!(spec.capabilities.count_ones(), 13);
    assert_eq!(
        spec.rlimits,
        [Rlimit {
            resource: 6,
            soft: 1024,
            hard: 1024
        }]
    );
}

#[test]
fn what_cannot_be_run_is_refused_with_what_to_do() {
    let long = "x".repeat(MAX_BYTES);
    let shell = |shell: &str, argv: &[&str]| Request {
        shell: Some(shell.to_owned()),
        ..asked(argv)
    };
    let env = |entry: &str| Request {
        env: vec![entry.as_bytes().to_vec()],
        ..asked(&["true"])
    };
    let cases = [
        (asked(&[]), CommandError::Empty),
        (asked(&[""]), CommandError::Empty),
        (shell("", &["a", "b"]), CommandError::ShellArguments(2)),
        (
            shell("bash", &["a"]),
            CommandError::Shell("bash".to_owned()),
        ),
        (env("NAME"), CommandError::Env("NAME".to_owned())),
        (env("=value"), CommandError::Env("=value".to_owned())),
        (asked(&["a\0b"]), CommandError::Nul("the command")),
        (env("A=\0"), CommandError::Nul("the environment")),
    ];
    for (request, error) in cases {
        assert_eq!(
            session(&record(), &image(ImageConfig::default()), &request),
            Err(error)
        );
    }
    let too_long = session(
        &record(),
        &image(ImageConfig::default()),
        &asked(&["echo", &long]),
    );
    assert!(matches!(too_long, Err(CommandError::TooLong(_))));
}
