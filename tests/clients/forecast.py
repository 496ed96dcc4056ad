"""What the clients ask for in these tests: the question, the tool's schema, and who judges an answer."""

import pydantic

QUESTION = "What is the weather in Paris for 3 days?"
ASK = [{"role": "user", "content": QUESTION}]


class Weather(pydantic.BaseModel):
    """Weather of a city"""

    model_config = pydantic.ConfigDict(extra="forbid")
    city: str = pydantic.Field(max_length=20)
    days: int = pydantic.Field(ge=1, le=7)


TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": Weather.model_json_schema()}}


def check(forecast):
    """The model heard the question, and pydantic takes its answer. `forecast`: a Weather, or its JSON. Which days a forced call names is
    nearly a tie for so small a model: it may turn with the rounding of another batch."""
    if isinstance(forecast, str):
        forecast = Weather.model_validate_json(forecast)
    assert isinstance(forecast, Weather) and forecast.city == "Paris", forecast
