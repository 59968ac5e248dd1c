"""Chat templates that know tools, one for each format of calls, worded for these tests."""

from tests.unit.template_samples import CHATML, GEMMA, LLAMA3, MISTRAL, PARTS, PHI

_TURNS = """{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>' + message.content + '</tool_response><|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n' + {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
            {{- '\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
"""

#: Hermes, Qwen 2.5: tools in a system turn
HERMES = (
    """{%- if tools %}
    {{- '<|im_start|>system\\nFunctions:\\n' }}
    {%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}
    {{- 'Put each call between <tool_call> and </tool_call>.<|im_end|>\\n' }}
{%- endif %}
"""
    + _TURNS
    + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

#: Qwen 3: the same, with reasoning that can be switched off
QWEN3 = (
    HERMES
    + "{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
)

#: DeepSeek-R1's way: the prompt opens the section
OPENED_THINKING = HERMES + "{{- '<think>\\n' }}"

#: reasoning with an effort
EFFORT = HERMES + "{{- 'effort: ' + reasoning_effort | default('none') }}{% if false %}<think>{% endif %}"

#: Qwen3-Coder: the mark of Hermes around XML
XML_CALLS = HERMES.replace("{'name': call", "'<function=x>' + {'name': call")

#: Llama 3.2's pythonic form
PYTHONIC = """{%- if tools %}
    {{- '<|start_header_id|>system<|end_header_id|>\\n\\nFunctions as JSON:\\n' + tools | tojson }}
    {{- '\\nTo call them write [name(key=value, other="x"), ...] and nothing else.<|eot_id|>' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content }}
    {%- if message.tool_calls %}
        {{- '[' }}
        {%- for call in message.tool_calls %}
            {{- call.function.name + '(' }}
            {%- for key, value in call.function.arguments.items() %}
                {{- key + '=' + value | tojson + (', ' if not loop.last else '') }}
            {%- endfor %}
            {{- ')' + (', ' if not loop.last else '') }}
        {%- endfor %}
        {{- ']' }}
    {%- endif %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
"""

_TOOLS = "{%- if tools %}{{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}\n"

#: Mistral: an array of calls behind the mark
MISTRAL_ARRAY = MISTRAL.replace("{{- bos_token }}", "{{- bos_token }}\n" + _TOOLS)

#: Mistral's newer form: a name and arguments behind the mark
MISTRAL_NAMED = """{{- bos_token }}
{%- if tools %}{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '[INST]' + message.content + '[/INST]' }}
    {%- elif message.role == 'system' %}
        {{- '[SYSTEM_PROMPT]' + message.content + '[/SYSTEM_PROMPT]' }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS]' + message.content + '[/TOOL_RESULTS]' }}
    {%- else %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + call.function.arguments | tojson }}
        {%- endfor %}
        {{- eos_token }}
    {%- endif %}
{%- endfor %}
"""

#: template -> the format that its model writes
BY_FORMAT = {
    "hermes": [HERMES, QWEN3, OPENED_THINKING],
    "llama-json": [LLAMA3],
    "llama-pythonic": [PYTHONIC],
    "mistral": [MISTRAL_ARRAY],
    "mistral-named": [MISTRAL_NAMED],
    "generic": [CHATML, GEMMA, PHI, PARTS, MISTRAL, XML_CALLS],
}
