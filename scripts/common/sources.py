"""Labelled pictures from wherever they are: folders, datasets on disk, parquet files, the Hub."""

from pathlib import Path

import datasets
import numpy as np

from scripts.common.errors import UserError, as_user_error


PICTURE_EXTENSIONS = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "dev": "validation",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
}


def open_digits() -> datasets.DatasetDict:
    """Scikit-learn's 1,797 scans of handwritten digits, 8 x 8 in 16 greys; a fifth of them, stratified, for the test."""
    from sklearn.datasets import load_digits

    scans, labels = load_digits(return_X_y=True)
    pictures = (scans.reshape(-1, 8, 8) * (255 / 16)).round().astype(np.uint8)
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=[str(n) for n in range(10)]))
    dataset = datasets.Dataset.from_dict({"image": list(pictures), "label": labels}, features=features)
    return dataset.train_test_split(test_size=0.2, stratify_by_column="label", seed=0)


def open_source(source: str) -> datasets.DatasetDict:
    """The splits of a source, which is what [`DataRecipe`] says it may be, under the names that `SPLIT_NAMES` gives them."""
    if source == "sklearn:digits":
        return open_digits()
    path = Path(source).expanduser()
    with as_user_error(source):
        found = open_path(path) if path.exists() else open_hub(source)
    if isinstance(found, datasets.Dataset):
        return datasets.DatasetDict(train=found)
    splits = datasets.DatasetDict({SPLIT_NAMES.get(name.lower(), name): rows for name, rows in found.items()})
    if len(splits) < len(found):
        raise UserError(f"{source} holds two splits of one kind: {', '.join(found)}")
    return splits


def open_path(path: Path) -> datasets.DatasetDict | datasets.Dataset:
    """What a file or folder holds, told by what is in it."""
    if path.is_file():
        if path.suffix != ".parquet":
            raise UserError(f"{path} is a file; expected a .parquet file or a folder")
        return datasets.load_dataset("parquet", data_files=str(path))
    if (path / "dataset_dict.json").exists() or (path / "state.json").exists():
        return datasets.load_from_disk(str(path))
    if any(path.rglob("*.parquet")):
        return datasets.load_dataset(str(path))
    return open_picture_folder(path)


def open_picture_folder(root: Path) -> datasets.DatasetDict:
    """
    A folder with a folder for each class or, if all its folders have names of splits and hold folders alone, with such
    a folder for each split. Pictures may lie deeper in the folder of their class.
    """
    folders = subfolders(root)
    splits = {f: SPLIT_NAMES[f.name.lower()] for f in folders if f.name.lower() in SPLIT_NAMES and subfolders(f)}
    others = [folder.name for folder in folders if folder not in splits]
    if splits and others:
        raise UserError(
            f"{root} holds splits ({', '.join(folder.name for folder in splits)}) beside {', '.join(others)}: set data.train, "
            "data.validation and data.test to one folder each"
        )
    splits = splits or {root: "train"}
    if len(set(splits.values())) < len(splits):
        raise UserError(f"{root} holds two splits of one kind: {', '.join(folder.name for folder in splits)}")
    return datasets.DatasetDict({name: open_class_folders(folder) for folder, name in splits.items()})


def open_class_folders(root: Path) -> datasets.Dataset:
    """The pictures of a folder with a folder for each class; their classes are numbered in the order of their names."""
    stray = next((file for file in sorted(root.iterdir()) if is_picture(file)), None)
    if stray is not None:
        raise UserError(f"{stray} lies in no folder of a class: put it into one, or elsewhere")
    files = {
        folder.name: sorted(file for file in folder.rglob("*") if is_picture(file)) for folder in subfolders(root)
    }
    files = {name: pictures for name, pictures in files.items() if pictures}
    if not files:
        raise UserError(f"no pictures in {root}: expected a folder for each class, with pictures in it")
    left_out = [file for file in root.rglob("*") if file.is_file() and not is_picture(file)]
    if left_out:
        print(f"{root}: {len(left_out)} files are no pictures and left out, such as {left_out[0].name}")
    names = sorted(files)
    rows = {"image": [str(file) for name in names for file in files[name]]}
    rows["label"] = [number for number, name in enumerate(names) for _ in files[name]]
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=names))
    return datasets.Dataset.from_dict(rows, features=features)


def subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def is_picture(file: Path) -> bool:
    """Whether its name is one of a picture; a link that leads nowhere is found when it is read."""
    return file.suffix.lower() in PICTURE_EXTENSIONS and not file.name.startswith(".") and not file.is_dir()


def open_hub(source: str) -> datasets.DatasetDict:
    """A dataset on the Hub."""
    if source.count("/") != 1 or source.startswith((".", "~")):
        raise UserError(f"{source}: no such file or folder, and no name of a dataset on the Hub (owner/name)")
    with as_user_error(f"{source}: no such folder here, and it could not be loaded from the Hub"):
        return datasets.load_dataset(source)
