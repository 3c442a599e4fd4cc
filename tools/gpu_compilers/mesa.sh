#!/bin/sh
# mesa.sh FOLDER: unpack Mesa 26's Vulkan drivers, stand-ins for their kernel drivers, and the C library that they need
# from Debian 13's packages into FOLDER. Needs apt on x86-64 and 63 MB of downloads; installs nothing.
set -e
mkdir -p "$1/apt/lists/partial" "$1/apt/archives/partial" "$1/apt/parts"
folder=$(cd "$1" && pwd)
mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep -m1 '/debian/$')
: > "$folder/apt/status"
for suite in trixie trixie-backports; do
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main"
done > "$folder/apt/sources"
cat > "$folder/apt/settings" <<END
APT::Architecture "amd64"; APT::Architectures "amd64"; APT::Sandbox::User ""; APT::Install-Recommends "false";
APT::Default-Release "trixie-backports"; Acquire::Languages "none";
Dir::Etc::sourcelist "$folder/apt/sources"; Dir::Etc::sourceparts "$folder/apt/parts";
Dir::Etc::preferencesparts "$folder/apt/parts"; Dir::State "$folder/apt"; Dir::State::lists "$folder/apt/lists";
Dir::State::status "$folder/apt/status"; Dir::Cache "$folder/apt"; Dir::Cache::archives "$folder/apt/archives";
END
export APT_CONFIG="$folder/apt/settings"
apt-get --quiet --quiet update
apt-get --quiet --quiet --yes install --download-only mesa-vulkan-drivers mesa-drm-shim > "$folder/apt/log"
for package in "$folder"/apt/archives/*.deb; do
    case $package in */libllvm* | */libz3*) ;; *) dpkg-deb --extract "$package" "$folder" ;; esac # for other drivers
done
rm -r "$folder/apt"
