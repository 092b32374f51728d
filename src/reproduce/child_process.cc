#include "reproduce/child_process.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "bytes/file_descriptor.h"
#include "dba/bytes/errors.h"

extern char** environ;

namespace dba::reproduce {
namespace {

constexpr int kCouldNotStart = 127;

int exit_status(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> result;
  for (std::string& word : words)
    result.push_back(word.data());
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> environment_with(const std::vector<std::pair<std::string, std::string>>& additions) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    bool replaced = false;
    for (const auto& [name, value] : additions)
      replaced = replaced || text.starts_with(name + "=");
    if (!replaced)
      all.push_back(text);
  }
  for (const auto& [name, value] : additions)
    all.push_back(name + "=" + value);
  return all;
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& arguments,
                           const std::vector<std::pair<std::string, std::string>>& environment,
                           const std::filesystem::path& log) {
  // Where a parent has it ignored, ended children leave no status behind.
  std::signal(SIGCHLD, SIG_DFL);
  const bytes::FileDescriptor output(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!output.valid())
    throw bytes::FileError("open", log, errno);
  const bytes::FileDescriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  auto words = arguments;
  auto variables = environment_with(environment);
  const auto argument_pointers = pointers(words);
  const auto variable_pointers = pointers(variables);
  const pid_t parent = ::getpid();
  id_ = ::fork();
  if (id_ < 0)
    throw bytes::FileError("start", arguments.front(), errno);
  if (id_ == 0) {  // other threads are gone: system calls only
    ::setpgid(0, 0);
#ifdef __linux__
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent)
      ::_exit(kCouldNotStart);
#endif
    ::dup2(nothing.get(), STDIN_FILENO);
    ::dup2(output.get(), STDOUT_FILENO);
    ::dup2(output.get(), STDERR_FILENO);
    std::signal(SIGINT, SIG_DFL);
    std::signal(SIGTERM, SIG_DFL);
    ::execve(argument_pointers[0], argument_pointers.data(), variable_pointers.data());
    ::_exit(kCouldNotStart);
  }
}

ChildProcess::~ChildProcess() {
  while (id_ > 0 && ::waitpid(id_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void ChildProcess::signal(int number) const {
  if (id_ > 0)
    ::kill(id_, number);
}

std::optional<int> ChildProcess::poll() {
  int status = 0;
  const pid_t ended = id_ > 0 ? ::waitpid(id_, &status, WNOHANG) : 0;
  if (ended != id_ || id_ <= 0)
    return std::nullopt;
  id_ = -1;
  return exit_status(status);
}

}  // namespace dba::reproduce
